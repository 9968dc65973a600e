#include "server/api/messages_request.h"

#include "server/api/request_common.h"

namespace vamp {
namespace {

// The time that a client asks to have its prefix kept says when it means to come back: half of it
// is the guess that errs least.
void read_cache_control(const Fields& block, ReuseHint& reuse) {
  const Json* control = block.find("cache_control");
  if (!control) return;
  const std::string ttl = Fields(*control, block.name("cache_control")).string("ttl", "5m");
  if (ttl == "1h") reuse.expected_gap = 1800 * kSecond;
  if (ttl == "5m" && !reuse.expected_gap) reuse.expected_gap = 150 * kSecond;
}

class Reader {
 public:
  explicit Reader(ReuseHint& reuse) : reuse_(reuse) {}

  // A string, or a list of text blocks.
  std::string text(const Json& content, const std::string& where) {
    if (content.is_string()) return content.get<std::string>();
    if (!content.is_array()) bad_field(where, "expected a string or a list of blocks");
    std::string out;
    for (size_t i = 0; i < content.size(); ++i) {
      const Fields block(content[i], fmt::format("{}[{}]", where, i));
      if (block.string("type", "text") != "text")
        bad_field(block.name("type"), "only text is supported here");
      read_cache_control(block, reuse_);
      append_line(block.string("text"), out);
    }
    return out;
  }

  // One of Anthropic's messages can be several of OpenAI's: tool results come each by itself.
  void message(const Fields& message, const std::string& where, Json& out) {
    const std::string role = message.string("role");
    if (role != "user" && role != "assistant" && role != "system")
      bad_field(where + ".role", "expected \"user\" or \"assistant\"");
    const Json* content = message.find("content");
    if (!content) bad_field(where + ".content", "missing");
    if (content->is_string()) {
      out.push_back({{"role", role}, {"content", *content}});
      return;
    }
    if (!content->is_array())
      bad_field(where + ".content", "expected a string or a list of blocks");
    Json converted = {{"role", role}, {"content", ""}};
    std::string said, thought;
    Json calls = Json::array();
    for (size_t i = 0; i < content->size(); ++i) {
      const Fields block((*content)[i], fmt::format("{}.content[{}]", where, i));
      read_cache_control(block, reuse_);
      const std::string type = block.string("type");
      if (type == "text") {
        append_line(block.string("text"), said);
      } else if (type == "thinking") {
        thought += block.string("thinking");
      } else if (type == "redacted_thinking") {
        continue;
      } else if (type == "tool_use") {
        const Json* input = block.find("input");
        calls.push_back(
            {{"id", block.string("id")},
             {"type", "function"},
             {"function",
              {{"name", block.string("name")}, {"arguments", input ? dump(*input) : "{}"}}}});
      } else if (type == "tool_result") {
        const Json* result = block.find("content");
        out.push_back({{"role", "tool"},
                       {"tool_call_id", block.string("tool_use_id")},
                       {"content", result ? text(*result, block.name("content")) : ""}});
      } else {
        bad_field(block.name("type"), "blocks of type {} are not supported: the model takes text",
                  dump(Json(type)));
      }
    }
    if (said.empty() && calls.empty() && thought.empty()) return;  // tool results alone
    converted["content"] = said;
    if (!thought.empty()) converted["reasoning"] = thought;
    if (!calls.empty()) converted["tool_calls"] = std::move(calls);
    out.push_back(std::move(converted));
  }

  Json tools(const Json& list) {
    if (!list.is_array()) bad_field("tools", "expected a list");
    Json out = Json::array();
    for (size_t i = 0; i < list.size(); ++i) {
      const Fields tool(list[i], fmt::format("tools[{}]", i));
      read_cache_control(tool, reuse_);
      const Json* schema = tool.find("input_schema");
      if (!schema)
        bad_field(tool.name("input_schema"), "missing: only tools of the client are supported");
      out.push_back({{"type", "function"},
                     {"function",
                      {{"name", tool.string("name")},
                       {"description", tool.string("description")},
                       {"parameters", *schema}}}});
    }
    return out;
  }

 private:
  ReuseHint& reuse_;
};

// tool_choice and, within it, disable_parallel_tool_use in OpenAI's names.
void convert_tool_choice(const Fields& body, Json& openai) {
  const Json* choice = body.find("tool_choice");
  if (!choice) return;
  const Fields fields(*choice, "tool_choice");
  const std::string type = fields.string("type", "auto");
  if (type == "auto" || type == "none") {
    openai["tool_choice"] = type;
  } else if (type == "any") {
    openai["tool_choice"] = "required";
  } else if (type == "tool") {
    const std::string name = fields.string("name");
    if (name.empty()) bad_field("tool_choice.name", "missing");
    openai["tool_choice"] = {{"type", "function"}, {"function", {{"name", name}}}};
  } else {
    bad_field("tool_choice.type", "{} is not known: use auto, any, tool or none", dump(Json(type)));
  }
  openai["parallel_tool_calls"] = !fields.boolean("disable_parallel_tool_use", false);
}

std::optional<RequestedConstraint> read_output_format(const Fields& body) {
  const Json* config = body.find("output_config");
  const Json* format = config ? Fields(*config, "output_config").find("format") : nullptr;
  return format ? read_flat_format(*format, "output_config.format") : std::nullopt;
}

}  // namespace

ChatRequest prepare_messages(Service& service, const HttpRequest& http, bool count_only) {
  const Json json = parse_body(http.body, service.options().max_json_depth);
  const Fields body(json);
  check_model(body, service);
  ChatRequest out;
  out.stream.stream = body.boolean("stream", false);

  // The same in OpenAI's names, read by the same code.
  Json openai = Json::object();
  for (const char* field : {"temperature", "top_p", "top_k", "chat_template_kwargs"}) {
    if (const Json* value = body.find(field)) openai[field] = *value;
  }
  openai["stop"] = body.strings("stop_sequences");
  Reader reader(out.generation.reuse);
  Json messages = Json::array();
  if (const Json* system = body.find("system"))
    messages.push_back({{"role", "system"}, {"content", reader.text(*system, "system")}});
  const Json* list = body.find("messages");
  if (!list || !list->is_array() || list->empty())
    bad_field("messages", "expected a list of at least one message");
  for (size_t i = 0; i < list->size(); ++i) {
    const std::string where = fmt::format("messages[{}]", i);
    reader.message(Fields((*list)[i], where), where, messages);
  }
  openai["messages"] = std::move(messages);
  if (const Json* tools = body.find("tools")) openai["tools"] = reader.tools(*tools);
  convert_tool_choice(body, openai);

  const Fields converted(openai);
  read_sampling(converted, service, out.generation);
  read_tenant(http, body, service, out.generation);
  Conversation conversation = read_conversation(converted, service, read_output_format(body));
  conversation.only_counted = count_only;
  render_conversation(service, std::move(conversation), out);
  if (count_only) return out;
  if (!body.find("max_tokens")) bad_field("max_tokens", "missing");
  const int asked = static_cast<int>(body.integer("max_tokens", 0, 1, kMaxInt));
  // Coding agents ask for more than fits: as much as does is what they mean.
  const int room =
      service.model().max_model_len - static_cast<int>(out.generation.prompts.front().size());
  settle_lengths(service, std::min(asked, std::max(1, room)), 0, out.generation);
  if (out.constraint) apply_constraint(service, *out.constraint, out.generation);
  return out;
}

}  // namespace vamp
