// Any text through every parser: no crash, and the same message whole as in pieces.
#include "text/output_parser.h"
#include "text/utf8.h"

namespace {

struct Message {
  std::string reasoning, content, calls;
  bool operator==(const Message&) const = default;
};

void add(const vamp::MessageDelta& delta, Message& message) {
  message.reasoning += delta.reasoning;
  message.content += delta.content;
  for (const vamp::ToolCallDelta& call : delta.tool_calls) {
    if (!call.id.empty()) message.calls += "\n" + call.id + call.name + " ";
    message.calls += call.arguments;
  }
}

Message parse(const vamp::OutputParserOptions& options, std::string_view text, size_t piece) {
  const auto parser = vamp::make_output_parser(options);
  Message message;
  vamp::MessageDelta delta;
  for (size_t at = 0; at < text.size(); at += piece) {
    delta = {};
    parser->push(text.substr(at, piece), delta);
    add(delta, message);
  }
  delta = {};
  parser->finish(delta);
  add(delta, message);
  return message;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const auto tools = vamp::tool_call_parser_names();
  const auto reasoning = vamp::reasoning_parser_names();
  vamp::OutputParserOptions options;
  options.tool_call_parser = tools[data[0] % tools.size()];
  if (data[1] % 2) options.reasoning_parser = reasoning[data[1] / 2 % reasoning.size()];
  options.tools = nlohmann::ordered_json::parse(
      R"([{"function": {"name": "f", "parameters": {"properties": {"x": {"type": "integer"}}}}}])");
  std::string text;
  vamp::utf8::append_replaced({reinterpret_cast<const char*>(data) + 2, size - 2}, text);
  const Message whole = parse(options, text, text.size() + 1);
  if (!(parse(options, text, 1) == whole) || !(parse(options, text, 7) == whole)) __builtin_trap();
  return 0;
}
