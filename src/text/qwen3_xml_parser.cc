// <tool_call>
// <function=get_weather>
// <parameter=city>
// Köln
// </parameter>
// </function>
// </tool_call>
// Values are text; the tool's schema says what becomes a number, a truth value or JSON.
#include <algorithm>

#include "text/output_parsers.h"
#include "text/parser_tools.h"

namespace vamp {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kCall = "<tool_call>";
constexpr std::string_view kCallEnd = "</tool_call>";
constexpr std::string_view kFunction = "<function=";
constexpr std::string_view kFunctionEnd = "</function>";
constexpr std::string_view kParameter = "<parameter=";
constexpr std::string_view kParameterEnd = "</parameter>";

// The "type" of a parameter in the request's tools; empty when they do not say.
std::string type_of(const Json& tools, const std::string& function, const std::string& parameter) {
  const Json::json_pointer path("/parameters/properties/" + [&] {
    std::string escaped;
    for (const char c : parameter) escaped += c == '~' ? "~0" : c == '/' ? "~1" : std::string(1, c);
    return escaped;
  }() + "/type");
  if (!tools.is_array()) return {};
  for (const Json& tool : tools) {
    const Json& described = tool.is_object() && tool.contains("function") ? tool["function"] : tool;
    if (!described.is_object() || described.value("name", Json()) != function) continue;
    if (described.contains(path) && described[path].is_string()) return described[path];
  }
  return {};
}

std::string json_value(std::string_view text, const std::string& type) {
  const auto quoted = [&] {
    return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  if (trimmed(text) == "null" && type != "string") return "null";
  if (type.empty() || type == "string") return quoted();
  if (type == "boolean") {
    std::string lower(trimmed(text));
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    return lower == "true" || lower == "false" ? lower : quoted();
  }
  const Json parsed = Json::parse(text, nullptr, false);
  const bool fits = (type == "integer" && parsed.is_number_integer()) ||
                    (type == "number" && parsed.is_number()) ||
                    (type == "array" && parsed.is_array()) ||
                    (type == "object" && parsed.is_object());
  return fits ? std::string(trimmed(text)) : quoted();
}

class Qwen3XmlParser final : public OutputParser {
 public:
  explicit Qwen3XmlParser(const OutputParserOptions& options)
      : tools_(options.tools), writer_(options.seed, ToolCallWriter::IdStyle::kOpenAi) {}

  void push(std::string_view text, MessageDelta& out) override {
    buffer_.append(text);
    while (step(out)) {
    }
  }

  void finish(MessageDelta& out) override {
    // A call that was cut within its name is given out as it stands; one cut later stays cut.
    if (state_ == State::kName) content_.write(kFunction, out);
    if (state_ == State::kContent || state_ == State::kName) content_.write(buffer_, out);
    buffer_.clear();
    content_.finish(out);
  }

 private:
  enum class State { kContent, kName, kBetween, kValue };

  bool step(MessageDelta& out) {
    switch (state_) {
      case State::kContent:
        return read_content(out);
      case State::kName:
        return read_name(out);
      case State::kBetween:
        return read_between(out);
      case State::kValue:
        return read_value(out);
    }
    return false;
  }

  bool read_content(MessageDelta& out) {
    const auto markers = {kCall, kCallEnd, kFunction};
    const MarkerMatch match = find_marker(buffer_, markers);
    const size_t sure = match ? match.at : buffer_.size() - partial_marker(buffer_, markers);
    content_.write(std::string_view(buffer_).substr(0, sure), out);
    buffer_.erase(0, match ? match.end() : sure);
    if (match.marker == kFunction) state_ = State::kName;
    return static_cast<bool>(match);
  }

  bool read_name(MessageDelta& out) {
    const size_t end = buffer_.find('>');
    if (end == std::string::npos) return false;
    function_ = trimmed(std::string_view(buffer_).substr(0, end));
    buffer_.erase(0, end + 1);
    content_.before_call();
    writer_.begin(function_, out);
    writer_.arguments("{", out);
    parameters_ = 0;
    state_ = State::kBetween;
    return true;
  }

  // Between parameters: white space, the next one, or the call's end.
  bool read_between(MessageDelta& out) {
    const MarkerMatch match = find_marker(buffer_, {kParameter, kFunctionEnd, kCallEnd});
    if (!match) return false;
    if (match.marker == kParameter) {
      const size_t end = buffer_.find('>', match.end());
      if (end == std::string::npos) return false;
      parameter_ = trimmed(std::string_view(buffer_).substr(match.end(), end - match.end()));
      buffer_.erase(0, end + 1);
      state_ = State::kValue;
    } else {
      buffer_.erase(0, match.end());
      writer_.arguments("}", out);
      state_ = State::kContent;
    }
    return true;
  }

  // A value ends at its own marker, or at what can only follow it.
  bool read_value(MessageDelta& out) {
    MarkerMatch match = find_marker(std::string_view(buffer_).substr(searched_),
                                    {kParameterEnd, kParameter, kFunctionEnd});
    if (!match) {  // values can be whole files: what was searched is not searched again
      searched_ = buffer_.size() - std::min(buffer_.size(), kParameterEnd.size() - 1);
      return false;
    }
    match.at += std::exchange(searched_, 0);
    std::string_view value = std::string_view(buffer_).substr(0, match.at);
    if (value.starts_with('\n')) value.remove_prefix(1);
    if (value.ends_with('\n')) value.remove_suffix(1);
    writer_.arguments(member_text(value), out);
    buffer_.erase(0, match.marker == kParameterEnd ? match.end() : match.at);
    state_ = State::kBetween;
    return true;
  }

  std::string member_text(std::string_view value) {
    std::string member = parameters_++ > 0 ? ", " : "";
    member += Json(parameter_).dump(-1, ' ', false, Json::error_handler_t::replace) + ": ";
    return member + json_value(value, type_of(tools_, function_, parameter_));
  }

  Json tools_;
  ToolCallWriter writer_;
  ContentWriter content_;
  State state_ = State::kContent;
  std::string buffer_, function_, parameter_;
  int parameters_ = 0;
  size_t searched_ = 0;  // no marker begins before here in buffer_
};

}  // namespace

std::unique_ptr<OutputParser> make_qwen3_xml_parser(const OutputParserOptions& options) {
  return std::make_unique<Qwen3XmlParser>(options);
}

}  // namespace vamp
