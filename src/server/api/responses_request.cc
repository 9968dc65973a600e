#include "server/api/responses_request.h"

#include "server/api/request_common.h"

namespace vamp {
namespace {

void add_item(const Json& value, const std::string& where, Json& messages) {
  const Fields item(value, where);
  const std::string type = item.string("type", "message");
  if (type == "message") {
    const std::string role = item.string("role");
    const Json* content = item.find("content");
    messages.push_back({{"role", role == "developer" ? "system" : role},
                        {"content", content ? *content : Json("")}});
  } else if (type == "function_call") {
    Json call = {{"id", item.string("call_id")},
                 {"type", "function"},
                 {"function",
                  {{"name", item.string("name")}, {"arguments", item.string("arguments", "{}")}}}};
    // Calls of one turn are one message, and what was said before them too.
    if (messages.empty() || messages.back().value("role", "") != "assistant")
      messages.push_back({{"role", "assistant"}, {"content", ""}});
    messages.back()["tool_calls"].push_back(std::move(call));
  } else if (type == "function_call_output") {
    const Json* output = item.find("output");
    messages.push_back({{"role", "tool"},
                        {"tool_call_id", item.string("call_id")},
                        {"content", output ? *output : Json("")}});
  } else if (type != "reasoning") {  // the model's earlier reasoning is not shown to it again
    bad_field(where + ".type", "items of type {} are not supported", dump(Json(type)));
  }
}

Json read_input(const Fields& body) {
  Json messages = Json::array();
  if (const std::string instructions = body.string("instructions"); !instructions.empty())
    messages.push_back({{"role", "system"}, {"content", instructions}});
  const Json* input = body.find("input");
  if (!input) throw ApiError(400, "input: missing", "input");
  if (input->is_string()) {
    messages.push_back({{"role", "user"}, {"content", *input}});
  } else if (input->is_array()) {
    for (size_t i = 0; i < input->size(); ++i)
      add_item((*input)[i], fmt::format("input[{}]", i), messages);
  } else {
    bad_field("input", "expected a string or a list of items");
  }
  return messages;
}

Json read_tools(const Json& list) {
  if (!list.is_array()) bad_field("tools", "expected a list");
  Json out = Json::array();
  for (size_t i = 0; i < list.size(); ++i) {
    const Fields tool(list[i], fmt::format("tools[{}]", i));
    if (tool.string("type") != "function")
      bad_field(tool.name("type"), "only tools of type \"function\" are supported");
    Json function = Json::object();
    for (const char* field : {"name", "description", "parameters", "strict"}) {
      if (const Json* value = tool.find(field)) function[field] = *value;
    }
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

// A named function has its name inside "function" in chats.
Json chat_tool_choice(const Json& choice) {
  if (!choice.is_object() || !choice.contains("name")) return choice;
  return {{"type", choice.value("type", Json("function"))},
          {"function", {{"name", choice["name"]}}}};
}

std::optional<RequestedConstraint> read_text_format(const Fields& body) {
  const Json* text = body.find("text");
  const Json* format = text ? Fields(*text, "text").find("format") : nullptr;
  auto asked = format ? read_flat_format(*format, "text.format") : std::nullopt;
  auto other = read_constraint(body);
  if (asked && other)
    bad_field(other->field, "text.format constrains the output too: use one of them");
  return asked ? asked : other;
}

}  // namespace

ResponsesRequest prepare_responses(Service& service, const HttpRequest& http) {
  const Json json = parse_body(http.body, service.options().max_json_depth);
  const Fields body(json);
  check_model(body, service);
  if (body.find("previous_response_id"))
    bad_field("previous_response_id",
              "responses are not stored: send the whole conversation as input");
  if (body.boolean("background", false)) bad_field("background", "not supported");
  ResponsesRequest out;
  ChatRequest& chat = out.chat;
  chat.stream.stream = body.boolean("stream", false);
  Json openai = Json::object();
  for (const char* field : {"temperature", "top_p", "top_k", "seed", "parallel_tool_calls", "stop",
                            "chat_template_kwargs"}) {
    if (const Json* value = body.find(field)) openai[field] = *value;
  }
  if (const Json* reasoning = body.find("reasoning")) {
    const std::string effort = Fields(*reasoning, "reasoning").string("effort");
    if (!effort.empty()) openai["reasoning_effort"] = effort;
  }
  openai["messages"] = read_input(body);
  if (const Json* tools = body.find("tools")) openai["tools"] = read_tools(*tools);
  if (const Json* choice = body.find("tool_choice"))
    openai["tool_choice"] = chat_tool_choice(*choice);
  const Fields converted(openai);
  read_sampling(converted, service, chat.generation);
  read_tenant(http, body, service, chat.generation);
  render_conversation(service, read_conversation(converted, service, read_text_format(body)), chat);
  std::optional<int> asked;
  if (body.find("max_output_tokens"))
    asked = static_cast<int>(body.integer("max_output_tokens", 0, 1, kMaxInt));
  settle_lengths(service, asked, service.model().defaults.max_tokens, chat.generation);
  if (chat.constraint) apply_constraint(service, *chat.constraint, chat.generation);

  const auto echo = [&](const char* field, Json fallback) {
    const Json* value = body.find(field);
    out.echoed[field] = value ? *value : std::move(fallback);
  };
  echo("instructions", nullptr);
  echo("metadata", Json::object());
  echo("tools", Json::array());
  echo("tool_choice", "auto");
  echo("parallel_tool_calls", true);
  echo("max_output_tokens", nullptr);
  out.echoed["temperature"] = chat.generation.sampling.temperature;
  out.echoed["top_p"] = chat.generation.sampling.top_p;
  out.echoed["previous_response_id"] = nullptr;
  out.echoed["store"] = false;
  return out;
}

}  // namespace vamp
