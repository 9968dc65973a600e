// A tool call written as {"name": …, "arguments": …}, while it is written.
#pragma once

#include <string>
#include <string_view>

#include "text/parser_tools.h"

namespace vamp {

// Follows one object and writes its deltas: the name once it is complete, then the arguments
// ("arguments" or "parameters") as they come; arguments that are a string are taken out of it.
class JsonCallScanner {
 public:
  explicit JsonCallScanner(ToolCallWriter& writer) : writer_(&writer) {}

  // Takes text up to the end of the object, or to where it is seen to be no call: how many bytes.
  size_t push(std::string_view text, MessageDelta& out);
  bool done() const { return state_ == State::kDone; }
  bool broken() const { return state_ == State::kBroken; }
  bool named() const { return named_; }
  // What was taken, to be given out as content if it is no call after all. Only until it is named.
  const std::string& taken() const { return taken_; }

 private:
  enum class State { kBegin, kKey, kKeyText, kColon, kValue, kNext, kDone, kBroken };

  void take(char c, MessageDelta& out);
  void take_value(char c, MessageDelta& out);
  void end_key();
  void end_value(MessageDelta& out);
  void end_object(MessageDelta& out);
  void expect(char c, char wanted, State next);
  void write_arguments(MessageDelta& out);
  bool is_arguments() const { return key_ == "arguments" || key_ == "parameters"; }

  ToolCallWriter* writer_;
  State state_ = State::kBegin;
  JsonValueScanner scanner_;  // of the key or value at hand
  std::string taken_, key_, value_;
  std::string arguments_;  // not written yet
  bool named_ = false, written_ = false;
};

}  // namespace vamp
