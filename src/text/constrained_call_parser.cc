// Tool calls that a constraint has made the output: nothing around them, and JSON all through.
#include <optional>

#include "text/json_call_scanner.h"
#include "text/output_parsers.h"

namespace vamp {
namespace {

class NamedCallParser final : public OutputParser {
 public:
  NamedCallParser(std::string name, uint64_t seed)
      : name_(std::move(name)), writer_(seed, ToolCallWriter::IdStyle::kOpenAi) {}

  void push(std::string_view text, MessageDelta& out) override {
    if (text.empty()) return;
    if (writer_.count() == 0) writer_.begin(name_, out);
    writer_.arguments(text, out);
  }
  void finish(MessageDelta&) override {}

 private:
  std::string name_;
  ToolCallWriter writer_;
};

class CallListParser final : public OutputParser {
 public:
  explicit CallListParser(uint64_t seed) : writer_(seed, ToolCallWriter::IdStyle::kOpenAi) {}

  void push(std::string_view text, MessageDelta& out) override {
    while (!text.empty()) {
      if (state_ == State::kPlain) {
        out.content.append(text);
        return;
      }
      text.remove_prefix(call_ ? read_call(text, out) : read_between(text.front(), out));
    }
  }

  void finish(MessageDelta& out) override {
    if (state_ != State::kPlain) give_up(out);
  }

 private:
  enum class State { kBegin, kItem, kNext, kEnd, kPlain };

  size_t read_call(std::string_view text, MessageDelta& out) {
    const size_t taken = call_->push(text, out);
    if (call_->broken()) {
      give_up(out);
    } else if (call_->done()) {
      call_.reset();
      state_ = State::kNext;
    }
    return taken;
  }

  // How many bytes of what stands before, between and behind the calls: one, or none where a call
  // begins or the text is seen to be no list of calls.
  size_t read_between(char c, MessageDelta& out) {
    if (state_ == State::kItem && c == '{') {
      call_.emplace(writer_);
      return 0;
    }
    if (state_ == State::kBegin && c == '[') {
      state_ = State::kItem;
    } else if (state_ == State::kNext && c == ',') {
      state_ = State::kItem;
    } else if (state_ == State::kNext && c == ']') {
      state_ = State::kEnd;
    } else if (!is_json_space(c)) {
      give_up(out);
      return 0;
    }
    if (writer_.count() == 0) before_.push_back(c);
    return 1;
  }

  // What was held back is content where no call has come of it.
  void give_up(MessageDelta& out) {
    if (writer_.count() == 0) out.content.append(before_);
    if (call_ && !call_->named()) out.content.append(call_->taken());
    call_.reset();
    state_ = State::kPlain;
  }

  ToolCallWriter writer_;
  std::optional<JsonCallScanner> call_;
  State state_ = State::kBegin;
  std::string before_;  // the first call
};

}  // namespace

std::unique_ptr<OutputParser> make_named_call_parser(const OutputParserOptions& options) {
  return std::make_unique<NamedCallParser>(options.named_tool, options.seed);
}

std::unique_ptr<OutputParser> make_call_list_parser(const OutputParserOptions& options) {
  return std::make_unique<CallListParser>(options.seed);
}

}  // namespace vamp
