// [TOOL_CALLS][{"name": …, "arguments": …}, …] (until 2024), and
// [TOOL_CALLS]name{…} or [TOOL_CALLS]name[CALL_ID]id[ARGS]{…} for each call (since).
#include <optional>

#include "text/json_call_scanner.h"
#include "text/output_parsers.h"

namespace vamp {
namespace {

constexpr std::string_view kCalls = "[TOOL_CALLS]";
constexpr std::string_view kCallId = "[CALL_ID]";
constexpr std::string_view kArguments = "[ARGS]";

class MistralParser final : public OutputParser {
 public:
  explicit MistralParser(uint64_t seed) : writer_(seed, ToolCallWriter::IdStyle::kMistral) {}

  void push(std::string_view text, MessageDelta& out) override {
    buffer_.append(text);
    while (step(out)) {
    }
  }

  void finish(MessageDelta& out) override {
    if (call_ && !call_->named()) content_.write(call_->taken(), out);
    if (state_ == State::kContent || state_ == State::kName) content_.write(buffer_, out);
    buffer_.clear();
    content_.finish(out);
  }

 private:
  enum class State { kContent, kForm, kList, kName, kBody };

  bool step(MessageDelta& out) {
    switch (state_) {
      case State::kContent:
        return read_content(out);
      case State::kForm:
        return read_form();
      case State::kList:
        return read_list(out);
      case State::kName:
        return read_name(out);
      case State::kBody:
        return read_arguments(out);
    }
    return false;
  }

  bool read_content(MessageDelta& out) {
    const MarkerMatch match = find_marker(buffer_, {kCalls});
    const size_t sure = match ? match.at : buffer_.size() - partial_marker(buffer_, {kCalls});
    content_.write(std::string_view(buffer_).substr(0, sure), out);
    buffer_.erase(0, match ? match.end() : sure);
    if (match) state_ = State::kForm;
    return static_cast<bool>(match);
  }

  bool read_form() {
    const size_t at = buffer_.find_first_not_of(" \n\r\t");
    if (at == std::string::npos) return false;
    state_ = buffer_[at] == '[' ? State::kList : State::kName;
    buffer_.erase(0, state_ == State::kList ? at + 1 : at);
    return true;
  }

  bool read_list(MessageDelta& out) {
    if (!call_) {
      const size_t at = buffer_.find_first_not_of(" \n\r\t,");
      if (at == std::string::npos) return false;
      if (buffer_[at] != '{') {  // the list's end
        buffer_.erase(0, buffer_[at] == ']' ? at + 1 : at);
        state_ = State::kContent;
        return true;
      }
      buffer_.erase(0, at);
      call_.emplace(writer_);
    }
    const bool was_named = call_->named();
    buffer_.erase(0, call_->push(buffer_, out));
    if (!was_named && call_->named()) content_.before_call();
    if (!call_->done() && !call_->broken()) return false;
    if (call_->broken()) {
      if (!call_->named()) content_.write(call_->taken(), out);
      state_ = State::kContent;
    }
    call_.reset();
    return true;
  }

  bool read_name(MessageDelta& out) {
    const size_t brace = buffer_.find('{');
    if (brace == std::string::npos) return false;
    std::string_view name = std::string_view(buffer_).substr(0, brace);
    name = name.substr(0, find_marker(name, {kCallId, kArguments}).at);
    content_.before_call();
    writer_.begin(std::string(trimmed(name)), out);
    buffer_.erase(0, brace);
    scanner_ = {};
    state_ = State::kBody;
    return true;
  }

  bool read_arguments(MessageDelta& out) {
    const size_t size = scanner_.push(buffer_);
    writer_.arguments(std::string_view(buffer_).substr(0, size), out);
    buffer_.erase(0, size);
    if (scanner_.done()) state_ = State::kContent;
    return scanner_.done();
  }

  ToolCallWriter writer_;
  ContentWriter content_;
  std::optional<JsonCallScanner> call_;
  JsonValueScanner scanner_;
  State state_ = State::kContent;
  std::string buffer_;
};

}  // namespace

std::unique_ptr<OutputParser> make_mistral_parser(const OutputParserOptions& options) {
  return std::make_unique<MistralParser>(options.seed);
}

}  // namespace vamp
