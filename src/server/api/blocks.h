// A message as a run of blocks (reasoning, text, tool calls), one open at a time: how Anthropic's
// API and OpenAI's Responses see it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "text/output_parser.h"

namespace vamp {

struct Block {
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
  const std::vector<Block>& blocks() const { return blocks_; }

 protected:
  virtual void opened(size_t /*index*/, const Block&) {}
  virtual void grew(size_t /*index*/, const Block&, std::string_view /*piece*/) {}
  virtual void closed(size_t /*index*/, const Block&) {}

 private:
  void open(Block block);
  void append(Block::Kind kind, const std::string& text);
  void append_call(const ToolCallDelta& call);

  std::vector<Block> blocks_;
  bool open_ = false;
  int call_ = -1;  // index of the open tool call
};

}  // namespace vamp
