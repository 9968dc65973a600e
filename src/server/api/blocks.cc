#include "server/api/blocks.h"

namespace vamp {

void BlockSequence::open(Block block) {
  finish();
  blocks_.push_back(std::move(block));
  open_ = true;
  opened(blocks_.size() - 1, blocks_.back());
}

void BlockSequence::finish() {
  if (!open_) return;
  open_ = false;
  closed(blocks_.size() - 1, blocks_.back());
}

void BlockSequence::append(Block::Kind kind, const std::string& text) {
  if (text.empty()) return;
  if (!open_ || blocks_.back().kind != kind) open({kind, {}, {}, {}});
  blocks_.back().text += text;
  grew(blocks_.size() - 1, blocks_.back(), text);
}

void BlockSequence::append_call(const ToolCallDelta& call) {
  if (!open_ || blocks_.back().kind != Block::Kind::kToolCall || call_ != call.index) {
    open({Block::Kind::kToolCall, {}, call.id, call.name});
    call_ = call.index;
  }
  if (call.arguments.empty()) return;
  blocks_.back().text += call.arguments;
  grew(blocks_.size() - 1, blocks_.back(), call.arguments);
}

void BlockSequence::add(const MessageDelta& delta) {
  append(Block::Kind::kReasoning, delta.reasoning);
  append(Block::Kind::kText, delta.content);
  for (const ToolCallDelta& call : delta.tool_calls) append_call(call);
}

}  // namespace vamp
