#include "server/api/chat_request.h"

#include "server/api/request_common.h"
#include "server/api/tool_constraint.h"

namespace vamp {
namespace {

// Content as one text: a list of text parts is put together, as templates of text models expect.
std::string text_content(const Json& content, const std::string& where) {
  if (content.is_null()) return {};
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) bad_field(where, "expected a string or a list of parts");
  std::string text;
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string part_name = fmt::format("{}[{}]", where, i);
    if (content[i].is_string()) {
      append_line(content[i].get<std::string>(), text);
      continue;
    }
    const Fields part(content[i], part_name);
    const std::string type = part.string("type", "text");
    if (type == "refusal") {
      append_line(part.string("refusal"), text);
    } else if (type == "text" || type == "input_text" || type == "output_text") {
      append_line(part.string("text"), text);
    } else {
      bad_field(part_name, "parts of type {} are not supported: the model takes text",
                dump(Json(type)));
    }
  }
  return text;
}

void check_tool_calls(const Json& calls, const std::string& where) {
  if (!calls.is_array()) bad_field(where, "expected a list");
  for (size_t i = 0; i < calls.size(); ++i) {
    const std::string name = fmt::format("{}[{}]", where, i);
    const Json* function = Fields(calls[i], name).find("function");
    if (!function) bad_field(name, "it has no \"function\"");
    if (Fields(*function, name + ".function").string("name").empty())
      bad_field(name + ".function.name", "missing");
  }
}

ChatJson read_messages(const Json* value) {
  if (!value) throw ApiError(400, "messages: missing", "messages");
  if (!value->is_array() || value->empty())
    bad_field("messages", "expected a list of at least one message");
  ChatJson messages = *value;
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string where = fmt::format("messages[{}]", i);
    Json& message = messages[i];
    const Fields fields(message, where);
    if (fields.string("role").empty()) bad_field(where + ".role", "missing");
    const Json* content = fields.find("content");
    message["content"] = text_content(content ? *content : Json(), where + ".content");
    if (const Json* calls = fields.find("tool_calls")) {
      check_tool_calls(*calls, where + ".tool_calls");
    } else {
      message.erase("tool_calls");
    }
    // Both names are in use; templates read the one or the other.
    const std::string reasoning = fields.string("reasoning", fields.string("reasoning_content"));
    if (!reasoning.empty()) message["reasoning"] = message["reasoning_content"] = reasoning;
  }
  parse_tool_arguments(messages);
  return messages;
}

ChatJson read_tools(const Json* value) {
  if (!value) return nullptr;
  if (!value->is_array()) bad_field("tools", "expected a list");
  for (size_t i = 0; i < value->size(); ++i) {
    const std::string where = fmt::format("tools[{}]", i);
    const Fields tool((*value)[i], where);
    if (tool.string("type", "function") != "function")
      bad_field(where + ".type", "only \"function\" is supported");
    const Json* function = tool.find("function");
    if (!function) bad_field(where, "it has no \"function\"");
    if (Fields(*function, where + ".function").string("name").empty())
      bad_field(where + ".function.name", "missing");
  }
  return value->empty() ? ChatJson(nullptr) : ChatJson(*value);
}

std::string tool_named_by(const Json& choice) {
  const Fields fields(choice, "tool_choice");
  const std::string type = fields.string("type", "function");
  if (type != "function") bad_field("tool_choice.type", "{} is not supported", dump(Json(type)));
  const Json* function = fields.find("function");
  const std::string name =
      function ? Fields(*function, "tool_choice.function").string("name") : std::string();
  if (name.empty()) bad_field("tool_choice.function.name", "missing");
  return name;
}

void read_tool_choice(const Fields& body, const Service& service, Conversation& out) {
  const Json& tools = out.prompt.tools;
  const Json* choice = body.find("tool_choice");
  const bool named = choice && !choice->is_string();
  const std::string word = !choice ? "auto" : named ? "a function" : choice->get<std::string>();
  const bool parallel = body.boolean("parallel_tool_calls", true);
  if (!named && word != "none" && word != "auto" && word != "required") {
    bad_field("tool_choice", "{} is not known: use auto, none, required, or name a function",
              dump(Json(word)));
  }
  if (word == "none" || (word == "auto" && tools.is_null())) return;
  if (word == "auto") {
    check_tools_allowed(service);
    out.tool_choice = ToolChoice::kAuto;
    return;
  }
  if (named) out.named_tool = tool_named_by(*choice);
  if (tools.is_null()) bad_field("tool_choice", "{} needs tools", word);
  // The form of an answer says nothing of a call; a constraint on all output would.
  if (out.constraint && out.constraint->any_output)
    bad_field(out.constraint->field, "not together with a tool_choice that forces a call");
  out.tool_choice = named ? ToolChoice::kNamed : ToolChoice::kRequired;
  out.constraint = named ? named_tool_constraint(tools, out.named_tool)
                         : required_tools_constraint(tools, parallel, service.options().grammar);
}

}  // namespace

void check_tools_allowed(const Service& service) {
  if (!service.options().enable_auto_tool_choice || service.options().tool_call_parser.empty()) {
    throw ApiError(400,
                   "\"auto\" tool choice requires --enable-auto-tool-choice and "
                   "--tool-call-parser to be set",
                   "tool_choice");
  }
}

Conversation read_conversation(const Fields& body, const Service& service,
                               std::optional<RequestedConstraint> format) {
  Conversation out;
  out.constraint = std::move(format);
  ChatPrompt& prompt = out.prompt;
  prompt.messages = read_messages(body.find("messages"));
  prompt.tools = read_tools(body.find("tools"));
  read_tool_choice(body, service, out);
  if (const Json* documents = body.find("documents")) prompt.documents = *documents;
  if (body.find("chat_template"))
    bad_field("chat_template",
              "a request may not bring its own; start the server with --chat-template");
  if (const std::string effort = body.string("reasoning_effort"); !effort.empty())
    prompt.variables["reasoning_effort"] = effort;
  if (const Json* kwargs = body.find("chat_template_kwargs")) {
    Fields(*kwargs, "chat_template_kwargs");
    prompt.variables.update(*kwargs);
  }
  prompt.add_generation_prompt = body.boolean("add_generation_prompt", true);
  prompt.continue_final_message = body.boolean("continue_final_message", false);
  if (prompt.continue_final_message && prompt.add_generation_prompt)
    bad_field("continue_final_message", "it needs add_generation_prompt: false");
  out.include_reasoning = body.boolean("include_reasoning", true);
  out.add_special_tokens = body.boolean("add_special_tokens", false);
  return out;
}

void render_conversation(Service& service, Conversation conversation, ChatRequest& out) {
  const ServerOptions& options = service.options();
  OutputParserOptions& parser = out.generation.choice.parser;
  parser.reasoning_parser = options.reasoning_parser;
  if (conversation.tool_choice == ToolChoice::kAuto) {
    parser.tool_call_parser = options.tool_call_parser;
    parser.tools = conversation.prompt.tools;
  }
  parser.named_tool = conversation.named_tool;
  parser.call_list = conversation.tool_choice == ToolChoice::kRequired;
  out.named_tool = conversation.tool_choice == ToolChoice::kNamed;
  out.constraint = std::move(conversation.constraint);
  parser.seed = out.generation.sampling.seed;
  if (needs_special_tokens(parser)) out.generation.choice.detokenizer.skip_special_tokens = false;
  out.include_reasoning = conversation.include_reasoning;
  const Json& last = conversation.prompt.messages.back();
  out.last_message = last.value("content", std::string());
  out.prompt_text = service.text().render(std::move(conversation.prompt));
  parser.prompt_opens_reasoning = prompt_opens_reasoning(out.prompt_text, options.reasoning_parser);
  const bool special = conversation.add_special_tokens;
  out.generation.prompts = {conversation.only_counted
                                ? service.text().tokenizer().encode(out.prompt_text, special)
                                : encode_prompt(service, out.prompt_text, special)};
}

ChatRequest prepare_chat(Service& service, const HttpRequest& http) {
  const Json json = parse_body(http.body, service.options().max_json_depth);
  const Fields body(json);
  check_model(body, service);
  refuse_unsupported(body);
  ChatRequest out;
  out.stream = read_stream_options(body);
  read_sampling(body, service, out.generation);
  read_tenant(http, body, service, out.generation);
  out.generation.choice.logprobs = body.boolean("logprobs", false);
  const auto top = body.integer("top_logprobs", 0, 0, service.options().max_logprobs);
  if (top > 0 && !out.generation.choice.logprobs)
    bad_field("top_logprobs", "it needs logprobs: true");
  if (out.generation.choice.logprobs) out.generation.sampling.logprobs = static_cast<int>(top);
  out.generation.sampling.prompt_logprobs = read_prompt_logprobs(body, service, out.stream.stream);
  out.echo = body.boolean("echo", false);
  std::optional<int> asked;
  for (const char* field : {"max_tokens", "max_completion_tokens"}) {
    if (body.find(field)) asked = static_cast<int>(body.integer(field, 0, 1, kMaxInt));
  }
  render_conversation(service, read_conversation(body, service, read_constraint(body)), out);
  settle_lengths(service, asked, service.model().defaults.max_tokens, out.generation);
  if (out.constraint) apply_constraint(service, *out.constraint, out.generation);
  return out;
}

}  // namespace vamp
