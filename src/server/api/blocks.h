// A message as a run of blocks (reasoning, text, tool calls), one open at a time: how Anthropic's
// API and OpenAI's Responses see it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/output_parser.h"

namespace vamp {

struct ContentBlock {
  enum class Kind { kReasoning, kText, kToolCall };
  Kind kind = Kind::kText;
  std::string text;           // of a tool call: its arguments' JSON
  std::string call_id, name;  // of a tool call
};

// Cuts deltas into blocks. What is derived from it writes the events of each.
class BlockSequence {
 public:
  virtual ~BlockSequence() = default;
  void add(const MessageDelta& delta);
  void finish();  // closes the last one
  const std::vector<ContentBlock>& blocks() const { return blocks_; }

 protected:
  virtual void opened(size_t /*index*/, const ContentBlock&) {}
  virtual void grew(size_t /*index*/, const ContentBlock&, std::string_view /*piece*/) {}
  virtual void closed(size_t /*index*/, const ContentBlock&) {}

 private:
  void open(ContentBlock block);
  void append(ContentBlock::Kind kind, const std::string& text);
  void append_call(const ToolCallDelta& call);

  std::vector<ContentBlock> blocks_;
  bool open_ = false;
  int call_ = -1;  // index of the open tool call
};

}  // namespace vamp
