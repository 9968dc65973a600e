// gpt-oss' format. The prompt ends with <|start|>assistant; then come messages:
//   <|channel|>analysis<|message|>…<|end|><|start|>assistant<|channel|>commentary
//   to=functions.get_weather <|constrain|>json<|message|>{…}<|call|>
// Channel analysis is reasoning, final and commentary are content, and what goes to functions.NAME
// is a tool call. The tokens that end the output (<|return|>, <|call|>) need not be in the text.
#include "text/output_parsers.h"
#include "text/parser_tools.h"

namespace vamp {
namespace {

constexpr std::string_view kChannel = "<|channel|>";
constexpr std::string_view kMessage = "<|message|>";
constexpr std::string_view kStart = "<|start|>";
constexpr std::string_view kEnd = "<|end|>";
constexpr std::string_view kReturn = "<|return|>";
constexpr std::string_view kCall = "<|call|>";
constexpr std::string_view kFunctions = "functions.";
constexpr size_t kMaxHeaderBytes = 4096;

// The word behind `key` in a message's header; empty when there is none.
std::string_view word_behind(std::string_view header, std::string_view key) {
  const size_t at = header.find(key);
  if (at == std::string_view::npos) return {};
  header.remove_prefix(at + key.size());
  return header.substr(0, header.find_first_of(" <\n\t"));
}

class HarmonyParser final : public OutputParser {
 public:
  explicit HarmonyParser(uint64_t seed) : writer_(seed, ToolCallWriter::IdStyle::kOpenAi) {}

  void push(std::string_view text, MessageDelta& out) override {
    buffer_.append(text);
    while (step(out)) {
    }
  }

  void finish(MessageDelta& out) override {
    // A header that was cut is no text for the user; the beginning of a marker in a body is.
    if (in_body_ || first_) write(buffer_, out);
    buffer_.clear();
  }

 private:
  enum class Target { kContent, kReasoning, kToolCall };

  bool step(MessageDelta& out) { return in_body_ ? read_body(out) : read_header(out); }

  bool read_header(MessageDelta& out) {
    if (first_) {
      const std::string_view text = trimmed(buffer_);
      for (const std::string_view opening : {kChannel, kMessage, kStart, std::string_view("to=")}) {
        if (text.starts_with(opening)) first_ = false;
        if (text.size() < opening.size() && opening.starts_with(text)) return false;
      }
      if (first_) {  // no format at all: content
        first_ = false;
        in_body_ = true;
        return true;
      }
    }
    const size_t end = buffer_.find(kMessage);
    const size_t least = end == std::string::npos ? buffer_.size() - kMessage.size() + 1 : end;
    if (buffer_.size() >= kMessage.size() && least > kMaxHeaderBytes) {
      give_up_header(out);
      return true;
    }
    if (end == std::string::npos) return false;
    begin_message(std::string_view(buffer_).substr(0, end), out);
    buffer_.erase(0, end + kMessage.size());
    in_body_ = true;
    return true;
  }

  // No header can be this long: the model has lost its format, and what it writes is content.
  void give_up_header(MessageDelta& out) {
    target_ = Target::kContent;
    write(buffer_.substr(0, 1), out);  // so that its own marker does not begin it anew
    buffer_.erase(0, 1);
    in_body_ = true;
  }

  void begin_message(std::string_view header, MessageDelta& out) {
    const std::string_view channel = word_behind(header, kChannel);
    const std::string_view recipient = word_behind(header, "to=");
    if (recipient.starts_with(kFunctions)) {
      target_ = Target::kToolCall;
      writer_.begin(std::string(recipient.substr(kFunctions.size())), out);
    } else if (channel == "analysis" || !recipient.empty()) {
      target_ = Target::kReasoning;
      if (std::exchange(has_reasoning_, true)) out.reasoning.push_back('\n');
    } else {
      target_ = Target::kContent;
      if (std::exchange(has_content_, true)) out.content.push_back('\n');
    }
  }

  bool read_body(MessageDelta& out) {
    const auto markers = {kEnd, kReturn, kCall, kStart, kChannel};
    const MarkerMatch match = find_marker(buffer_, markers);
    const size_t sure = match ? match.at : buffer_.size() - partial_marker(buffer_, markers);
    write(std::string_view(buffer_).substr(0, sure), out);
    // A header's own markers stay for it.
    const bool opens = match.marker == kStart || match.marker == kChannel;
    buffer_.erase(0, match && !opens ? match.end() : sure);
    if (match) in_body_ = false;
    return static_cast<bool>(match);
  }

  void write(std::string_view text, MessageDelta& out) {
    switch (target_) {
      case Target::kContent:
        out.content.append(text);
        return;
      case Target::kReasoning:
        out.reasoning.append(text);
        return;
      case Target::kToolCall:
        writer_.arguments(text, out);
        return;
    }
  }

  ToolCallWriter writer_;
  Target target_ = Target::kContent;
  bool first_ = true;  // nothing has been read yet
  bool in_body_ = false, has_reasoning_ = false, has_content_ = false;
  std::string buffer_;
};

}  // namespace

std::unique_ptr<OutputParser> make_harmony_parser(const OutputParserOptions& options) {
  return std::make_unique<HarmonyParser>(options.seed);
}

}  // namespace vamp
