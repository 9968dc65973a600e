// <tool_call>{"name": …, "arguments": …}</tool_call>
#include <optional>

#include "text/json_call_scanner.h"
#include "text/output_parsers.h"

namespace vamp {
namespace {

constexpr std::string_view kBegin = "<tool_call>";
constexpr std::string_view kEnd = "</tool_call>";

class HermesParser final : public OutputParser {
 public:
  explicit HermesParser(uint64_t seed) : writer_(seed, ToolCallWriter::IdStyle::kOpenAi) {}

  void push(std::string_view text, MessageDelta& out) override {
    buffer_.append(text);
    while (step(out)) {
    }
  }

  void finish(MessageDelta& out) override {
    if (call_ && !call_->named()) {
      content_.write(kBegin, out);
      content_.write(call_->taken(), out);
    }
    content_.write(buffer_, out);
    buffer_.clear();
    content_.finish(out);
  }

 private:
  bool step(MessageDelta& out) { return call_ ? read_call(out) : read_content(out); }

  // Up to the next call. False when the buffer has no more to give.
  bool read_content(MessageDelta& out) {
    const MarkerMatch match = find_marker(buffer_, {kBegin, kEnd});
    const size_t sure = match ? match.at : buffer_.size() - partial_marker(buffer_, {kBegin, kEnd});
    content_.write(std::string_view(buffer_).substr(0, sure), out);
    buffer_.erase(0, match ? match.end() : sure);
    if (match.marker == kBegin) call_.emplace(writer_);
    return static_cast<bool>(match);
  }

  bool read_call(MessageDelta& out) {
    const bool was_named = call_->named();
    buffer_.erase(0, call_->push(buffer_, out));
    if (!was_named && call_->named()) content_.before_call();
    if (call_->broken() && !call_->named()) {
      content_.write(kBegin, out);
      content_.write(call_->taken(), out);
    }
    if (!call_->done() && !call_->broken()) return false;
    call_.reset();
    return true;
  }

  ToolCallWriter writer_;
  ContentWriter content_;
  std::optional<JsonCallScanner> call_;
  std::string buffer_;
};

}  // namespace

std::unique_ptr<OutputParser> make_hermes_parser(const OutputParserOptions& options) {
  return std::make_unique<HermesParser>(options.seed);
}

}  // namespace vamp
