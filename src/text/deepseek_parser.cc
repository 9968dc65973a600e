// DeepSeek's calls. V3:
// …call▁begin｜>function<｜tool▁sep｜>NAME\n```json\n{…}\n```<｜tool▁call▁end｜>; V3.1:
// …call▁begin｜>NAME<｜tool▁sep｜>{…}<｜tool▁call▁end｜>; all of them between calls▁begin and
// calls▁end.
#include <algorithm>

#include "text/output_parsers.h"
#include "text/parser_tools.h"

namespace vamp {
namespace {

constexpr std::string_view kCallsBegin = "<｜tool▁calls▁begin｜>";
constexpr std::string_view kCallsEnd = "<｜tool▁calls▁end｜>";
constexpr std::string_view kCallBegin = "<｜tool▁call▁begin｜>";
constexpr std::string_view kCallEnd = "<｜tool▁call▁end｜>";
constexpr std::string_view kFenceText = "```";
constexpr std::string_view kSeparator = "<｜tool▁sep｜>";

class DeepSeekParser final : public OutputParser {
 public:
  explicit DeepSeekParser(uint64_t seed) : writer_(seed, ToolCallWriter::IdStyle::kOpenAi) {}

  void push(std::string_view text, MessageDelta& out) override {
    buffer_.append(text);
    while (step(out)) {
    }
  }

  void finish(MessageDelta& out) override {
    // A call that was cut before its name was whole is given out as it stands.
    if (state_ == State::kHeader) content_.write(kCallBegin, out);
    if (state_ != State::kArguments) content_.write(buffer_, out);
    buffer_.clear();
    content_.finish(out);
  }

 private:
  enum class State { kContent, kHeader, kArguments, kFence };

  bool step(MessageDelta& out) {
    switch (state_) {
      case State::kContent:
        return read_content(out);
      case State::kHeader:
        return read_header(out);
      case State::kArguments:
        return read_arguments(out);
      case State::kFence:
        return read_fence();
    }
    return false;
  }

  // Text, and what stands around the calls.
  bool read_content(MessageDelta& out) {
    const auto markers = {kCallBegin, kCallsBegin, kCallsEnd, kCallEnd};
    const MarkerMatch match = find_marker(buffer_, markers);
    const size_t sure = match ? match.at : buffer_.size() - partial_marker(buffer_, markers);
    content_.write(std::string_view(buffer_).substr(0, sure), out);
    buffer_.erase(0, match ? match.end() : sure);
    if (match.marker == kCallBegin) state_ = State::kHeader;
    return static_cast<bool>(match);
  }

  bool read_header(MessageDelta& out) {
    const size_t separator = buffer_.find(kSeparator);
    if (separator == std::string::npos) return false;
    std::string_view name = std::string_view(buffer_).substr(0, separator);
    const size_t body = separator + kSeparator.size();
    const size_t brace = buffer_.find('{', body);
    if (brace == std::string::npos) return false;
    if (trimmed(name) == "function") {
      name = std::string_view(buffer_).substr(body, brace - body);
      name = name.substr(0, name.find("```"));
    }
    content_.before_call();
    writer_.begin(std::string(trimmed(name)), out);
    buffer_.erase(0, brace);
    scanner_ = {};
    state_ = State::kArguments;
    return true;
  }

  bool read_arguments(MessageDelta& out) {
    const size_t size = scanner_.push(buffer_);
    writer_.arguments(std::string_view(buffer_).substr(0, size), out);
    buffer_.erase(0, size);
    if (scanner_.done()) state_ = State::kFence;
    return scanner_.done();
  }

  // V3 closes the arguments by a fence, which belongs to the call.
  bool read_fence() {
    const size_t at = std::min(buffer_.find_first_not_of(" \n\r\t"), buffer_.size());
    const std::string_view rest = std::string_view(buffer_).substr(at);
    if (rest.size() < kFenceText.size() && kFenceText.starts_with(rest)) return false;
    if (rest.starts_with(kFenceText)) buffer_.erase(0, at + kFenceText.size());
    state_ = State::kContent;
    return true;
  }

  ToolCallWriter writer_;
  ContentWriter content_;
  JsonValueScanner scanner_;
  State state_ = State::kContent;
  std::string buffer_;
};

}  // namespace

std::unique_ptr<OutputParser> make_deepseek_parser(const OutputParserOptions& options) {
  return std::make_unique<DeepSeekParser>(options.seed);
}

}  // namespace vamp
