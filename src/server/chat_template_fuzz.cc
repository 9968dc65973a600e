// Any bytes as a chat's messages, tools and arguments of its template: refused with a 400, or asked
// of the process that renders in a form that it can rely on, whatever the bytes are. That process
// itself is left out: it is Jinja2.
#include "server/api/chat_request.h"
#include "server/service.h"
#include "text/json_depth.h"

namespace {

using vamp::Json;

constexpr const char* kTemplate = "{{ messages }}";

vamp::ServerOptions fuzz_options() {
  vamp::ServerOptions options;
  options.enable_auto_tool_choice = true;
  options.tool_call_parser = "hermes";
  return options;
}

void require(bool holds) {
  if (!holds) __builtin_trap();
}

void check_message(const Json& message) {
  require(!message.at("role").get_ref<const std::string&>().empty());
  require(message.at("content").is_string());
  if (!message.contains("tool_calls")) return;
  for (const Json& call : message["tool_calls"]) {
    const Json& function = call.at("function");
    require(!function.at("name").get_ref<const std::string&>().empty());
    const Json& arguments = function.at("arguments");
    if (!arguments.is_string()) continue;
    const auto& text = arguments.get_ref<const std::string&>();  // no JSON object, or too deep
    require(vamp::nested_deeper_than(text, vamp::kMostArgumentDepth) || !Json::accept(text) ||
            Json::parse(text).is_string());
  }
}

void check_request(const Json& request) {
  require(request.at("template") == kTemplate);  // nobody but the server names it
  require(!request.at("messages").empty());
  for (const Json& message : request["messages"]) check_message(message);
  if (!request.at("tools").is_null()) {
    for (const Json& tool : request["tools"]) require(tool.at("function").at("name").is_string());
  }
  require(request.at("variables").is_object());
  require(!(request.at("add_generation_prompt").get<bool>() &&
            request.at("continue_final_message").get<bool>()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const vamp::Service service(fuzz_options());
  try {
    const Json body = vamp::parse_body({reinterpret_cast<const char*>(data), size},
                                       service.options().max_json_depth);
    vamp::ChatPrompt prompt =
        vamp::read_conversation(vamp::Fields(body), service, std::nullopt).prompt;
    prompt.chat_template = kTemplate;
    check_request(Json::parse(vamp::render_request_text(vamp::render_request(prompt), {})));
  } catch (const vamp::ApiError& error) {
    require(error.status() == 400);
    error.response();
  }
  return 0;
}
