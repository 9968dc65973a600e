#include "server/api/blocks.h"

namespace vamp {

void BlockSequence::open(ContentBlock block) {
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

void BlockSequence::append(ContentBlock::Kind kind, const std::string& text) {
  if (text.empty()) return;
  if (!open_ || blocks_.back().kind != kind) open({kind, {}, {}, {}});
  blocks_.back().text += text;
  grew(blocks_.size() - 1, blocks_.back(), text);
}

void BlockSequence::append_call(const ToolCallDelta& call) {
  if (!open_ || blocks_.back().kind != ContentBlock::Kind::kToolCall || call_ != call.index) {
    open({ContentBlock::Kind::kToolCall, {}, call.id, call.name});
    call_ = call.index;
  }
  if (call.arguments.empty()) return;
  blocks_.back().text += call.arguments;
  grew(blocks_.size() - 1, blocks_.back(), call.arguments);
}

void BlockSequence::add(const MessageDelta& delta) {
  append(ContentBlock::Kind::kReasoning, delta.reasoning);
  append(ContentBlock::Kind::kText, delta.content);
  for (const ToolCallDelta& call : delta.tool_calls) append_call(call);
}

}  // namespace vamp
