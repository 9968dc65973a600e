#include "replay/completion_stream.h"

#include "base/error.h"

namespace vamp {
namespace {

using Json = nlohmann::json;

constexpr size_t kLongestLine = 64 << 20;  // of one event
constexpr size_t kLongestFault = 300;

// A member, or null where there is none or `json` is no object.
const Json& member(const Json& json, const char* name) {
  static const Json null;
  const auto found = json.is_object() ? json.find(name) : json.end();
  return json.is_object() && found != json.end() ? *found : null;
}

int count_in(const Json& json, const char* name) {
  const Json& value = member(json, name);
  return value.is_number_integer() ? value.get<int>() : -1;
}

// Printable and short, cut between characters.
std::string one_line(std::string text) {
  const bool cut = text.size() > kLongestFault;
  size_t end = std::min(text.size(), kLongestFault);
  while (cut && end > 0 && (text[end] & 0xC0) == 0x80) --end;
  text.resize(end);
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  }
  return text + (cut ? "..." : "");
}

// Also a fault's text as a string, or in {"message": ...} or {"detail": ...}.
std::string fault_of(const Json& json) {
  if (json.is_string()) return json.get<std::string>();
  for (const char* name : {"error", "message", "detail"}) {
    const Json& value = member(json, name);
    if (!value.is_null()) return fault_of(value);
  }
  return json.dump();
}

}  // namespace

std::string server_fault(std::string_view body) {
  const Json json = Json::parse(body, nullptr, false);
  if (!json.is_discarded()) return one_line(fault_of(json));
  std::string text(body.substr(0, kLongestFault + 1));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) >= 0x80) c = '?';  // it may be no UTF-8
  }
  return one_line(std::move(text));
}

void CompletionStream::feed(std::string_view bytes) {
  size_t end;
  while ((end = bytes.find('\n')) != std::string_view::npos) {
    rest_.append(bytes.substr(0, end));
    bytes.remove_prefix(end + 1);
    if (rest_.ends_with('\r')) rest_.pop_back();
    line(rest_);
    rest_.clear();
  }
  rest_.append(bytes);
  if (rest_.size() > kLongestLine) throw Error("the stream has a line without an end");
}

// Comments and the names of events are passed over, as by the standard.
void CompletionStream::line(std::string_view text_line) {
  constexpr std::string_view kData = "data:";
  if (!text_line.starts_with(kData)) return;
  text_line.remove_prefix(kData.size());
  if (text_line.starts_with(' ')) text_line.remove_prefix(1);
  if (text_line == "[DONE]") return;
  const Json json = Json::parse(text_line, nullptr, false);
  if (!json.is_object())
    throw Error("the stream has an event that is no JSON object: {}", server_fault(text_line));
  event(json);
}

void CompletionStream::event(const Json& json) {
  if (!member(json, "error").is_null()) throw Error("{}", one_line(fault_of(json)));
  const Json& choices = member(json, "choices");
  if (choices.is_array() && !choices.empty()) choice(choices.front());
  const Json& usage = member(json, "usage");
  if (!usage.is_object()) return;
  prompt_tokens = count_in(usage, "prompt_tokens");
  output_tokens = count_in(usage, "completion_tokens");
  cached_tokens = count_in(member(usage, "prompt_tokens_details"), "cached_tokens");
}

void CompletionStream::choice(const Json& choice) {
  bool generated = false;
  const Json& piece = member(choice, "text");
  if (piece.is_string() && !piece.get_ref<const std::string&>().empty()) {
    generated = true;
    text += piece.get_ref<const std::string&>();
  }
  const Json& ids = member(choice, "token_ids");
  if (ids.is_array()) {
    generated = generated || !ids.empty();
    for (const Json& id : ids) {
      if (!id.is_number_integer()) throw Error("the stream's token_ids are no integers");
      tokens.push_back(id.get<TokenId>());
    }
  }
  const Json& end = member(choice, "finish_reason");
  if (end.is_string()) {
    const std::string& why = end.get_ref<const std::string&>();
    if (why != "stop" && why != "length") throw Error("the answer ended with \"{}\"", why);
    reason = why == "length" ? FinishReason::kLength : FinishReason::kStop;
    // Tokens that show no text, as an end token, come with the end alone.
    generated = generated || !started;
    finished = true;
  }
  started = started || generated;
  pieces += generated ? 1 : 0;
}

}  // namespace vamp
