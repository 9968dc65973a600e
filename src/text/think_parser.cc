// Reasoning between <think> and </think>, or their like.
#include "text/output_parsers.h"
#include "text/parser_tools.h"

namespace vamp {
namespace {

class ThinkParser final : public OutputParser {
 public:
  ThinkParser(std::string begin, std::string end, bool open, std::unique_ptr<OutputParser> rest)
      : begin_(std::move(begin)), end_(std::move(end)), open_(open), rest_(std::move(rest)) {}

  void push(std::string_view text, MessageDelta& out) override {
    if (state_ == State::kRest) return rest_->push(text, out);
    buffer_.append(text);
    if (state_ == State::kBegin && !decide()) return;
    if (state_ == State::kReasoning) {
      reason(out);
    } else {
      rest_->push(std::exchange(buffer_, {}), out);
    }
  }

  void finish(MessageDelta& out) override {
    // What could still have become a marker is text after all.
    if (state_ == State::kReasoning || (state_ == State::kBegin && open_)) {
      out.reasoning.append(buffer_);
    } else if (!buffer_.empty()) {
      rest_->push(buffer_, out);
    }
    buffer_.clear();
    rest_->finish(out);
  }

 private:
  enum class State { kBegin, kReasoning, kRest };

  // Whether the output begins with the marker; false while that is open.
  bool decide() {
    std::string_view text = buffer_;
    while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
    if (text.size() < begin_.size() && std::string_view(begin_).starts_with(text)) return false;
    if (text.starts_with(begin_)) {
      buffer_.erase(0, buffer_.size() - text.size() + begin_.size());
      state_ = State::kReasoning;
    } else {
      state_ = open_ ? State::kReasoning : State::kRest;
    }
    return true;
  }

  void reason(MessageDelta& out) {
    const MarkerMatch end = find_marker(buffer_, {end_});
    if (!end) {
      const size_t sure = buffer_.size() - partial_marker(buffer_, {end_});
      out.reasoning.append(buffer_, 0, sure);
      buffer_.erase(0, sure);
      return;
    }
    out.reasoning.append(buffer_, 0, end.at);
    state_ = State::kRest;
    const std::string rest = buffer_.substr(end.end());
    buffer_.clear();
    if (!rest.empty()) rest_->push(rest, out);
  }

  std::string begin_, end_;
  bool open_;
  std::unique_ptr<OutputParser> rest_;
  State state_ = State::kBegin;
  std::string buffer_;
};

}  // namespace

std::unique_ptr<OutputParser> make_think_parser(std::string begin, std::string end, bool open,
                                                std::unique_ptr<OutputParser> rest) {
  return std::make_unique<ThinkParser>(std::move(begin), std::move(end), open, std::move(rest));
}

}  // namespace vamp
