// What the model writes, taken apart while it is written: reasoning, content and tool calls, as
// deltas for a client of OpenAI's API.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace vamp {

// A piece of one tool call. The first delta of a call carries id and name; the arguments of all its
// deltas together are a JSON object's text (cut short where the model was).
struct ToolCallDelta {
  int index = 0;
  std::string id, name;
  std::string arguments;
};

struct MessageDelta {
  std::string reasoning;
  std::string content;
  std::vector<ToolCallDelta> tool_calls;
  bool empty() const { return reasoning.empty() && content.empty() && tool_calls.empty(); }
};

struct OutputParserOptions {
  std::string reasoning_parser = {};  // --reasoning-parser; empty: text is never taken as reasoning
  std::string tool_call_parser = {};  // --tool-call-parser; empty: nor as a tool call
  // In place of tool_call_parser, where a constraint makes the output a call: the whole text is the
  // arguments of this tool, or it is a JSON list of {"name": …, "parameters": …}.
  std::string named_tool = {};
  bool call_list = false;
  // The prompt ends within the reasoning, because the chat template has opened it.
  bool prompt_opens_reasoning = false;
  nlohmann::ordered_json tools =
      nullptr;        // as in the request: types for parameters written as text
  uint64_t seed = 0;  // of the ids of tool calls
};

// One output. Takes text as a Detokenizer gives it, in any pieces: together the deltas do not
// depend on how it was cut. Text that begins like a call but is none comes out as content, nothing
// is lost. One thread.
class OutputParser {
 public:
  virtual ~OutputParser() = default;
  // Appends what the text makes certain.
  virtual void push(std::string_view text, MessageDelta& out) = 0;
  // Appends what is still held back. To be called once, at the end.
  virtual void finish(MessageDelta& out) = 0;
};

// Throws Error naming the parsers there are when a name is unknown.
std::unique_ptr<OutputParser> make_output_parser(const OutputParserOptions& options);

// True when the parsers read special tokens, so that the Detokenizer must keep them.
bool needs_special_tokens(const OutputParserOptions& options);

// What encloses the reasoning, for parsers that look for two markers.
struct ReasoningMarkers {
  std::string begin, end;
  bool open = false;  // the output begins within the reasoning
};
// Nothing where the options have no such parser.
std::optional<ReasoningMarkers> reasoning_markers(const OutputParserOptions& options);

// True for gpt-oss' format, whose channels hold reasoning, content and calls.
bool writes_channels(const OutputParserOptions& options);

// True when the prompt's text ends within reasoning that it has opened itself.
bool prompt_opens_reasoning(std::string_view prompt, const std::string& reasoning_parser);

std::vector<std::string> reasoning_parser_names();
std::vector<std::string> tool_call_parser_names();

}  // namespace vamp
