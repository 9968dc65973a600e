// {"name": …, "parameters": …} as the whole output; several are divided by ";".
#include <optional>

#include "text/json_call_scanner.h"
#include "text/output_parsers.h"

namespace vamp {
namespace {

constexpr std::string_view kPythonTag = "<|python_tag|>";

class Llama3Parser final : public OutputParser {
 public:
  explicit Llama3Parser(uint64_t seed) : writer_(seed, ToolCallWriter::IdStyle::kOpenAi) {}

  void push(std::string_view text, MessageDelta& out) override {
    buffer_.append(text);
    while (step(out)) {
    }
  }

  void finish(MessageDelta& out) override {
    if (call_ && !call_->named()) out.content.append(call_->taken());
    // Between calls only white space and a divider can be left.
    if (writer_.count() == 0 || trimmed(buffer_).find_first_not_of(';') != std::string::npos) {
      out.content.append(buffer_);
    }
    buffer_.clear();
  }

 private:
  bool step(MessageDelta& out) {
    if (plain_) {
      out.content.append(std::exchange(buffer_, {}));
      return false;
    }
    return call_ ? read_call(out) : begin_call();
  }

  // Whether the output is a call is seen from its first character.
  bool begin_call() {
    std::string_view rest = buffer_;
    const std::string_view dividers = writer_.count() > 0 ? " \n\r\t;" : " \n\r\t";
    while (!rest.empty() && dividers.find(rest.front()) != std::string_view::npos)
      rest.remove_prefix(1);
    if (rest.size() < kPythonTag.size() && kPythonTag.starts_with(rest)) return false;
    if (rest.starts_with(kPythonTag)) {
      buffer_ = rest.substr(kPythonTag.size());
      return true;
    }
    if (rest.front() != '{') {
      plain_ = true;
    } else {
      buffer_ = rest;
      call_.emplace(writer_);
    }
    return true;
  }

  bool read_call(MessageDelta& out) {
    buffer_.erase(0, call_->push(buffer_, out));
    if (call_->broken()) {
      plain_ = true;
      if (!call_->named()) out.content.append(call_->taken());
    }
    if (!call_->done() && !call_->broken()) return false;
    call_.reset();
    return true;
  }

  ToolCallWriter writer_;
  std::optional<JsonCallScanner> call_;
  std::string buffer_;
  bool plain_ = false;  // what comes is content
};

}  // namespace

std::unique_ptr<OutputParser> make_llama3_parser(const OutputParserOptions& options) {
  return std::make_unique<Llama3Parser>(options.seed);
}

}  // namespace vamp
