#include "text/json_call_scanner.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

namespace vamp {
namespace {

// An object with other members before its name is an answer in JSON, not a call.
constexpr std::array<std::string_view, 5> kMembers = {"name", "arguments", "parameters", "type",
                                                      "id"};

// The string that a JSON string literal stands for; false when it is none.
bool read_string(const std::string& literal, std::string& out) {
  const auto parsed = nlohmann::json::parse(literal, nullptr, false);
  if (!parsed.is_string()) return false;
  out = parsed.get<std::string>();
  return true;
}

}  // namespace

size_t JsonCallScanner::push(std::string_view text, MessageDelta& out) {
  size_t taken = 0;
  while (taken < text.size() && !done() && !broken()) {
    take(text[taken], out);
    if (broken()) break;
    if (!named_) taken_.push_back(text[taken]);
    ++taken;
  }
  write_arguments(out);
  return taken;
}

void JsonCallScanner::take(char c, MessageDelta& out) {
  switch (state_) {
    case State::kBegin:
      return expect(c, '{', State::kKey);
    case State::kKey:
      if (c == '}') return end_object(out);
      expect(c, '"', State::kKeyText);
      scanner_ = {};
      value_.clear();
      if (state_ == State::kKeyText) {
        scanner_.step(c);
        value_.push_back(c);
      }
      return;
    case State::kKeyText:
      value_.push_back(c);
      if (scanner_.step(c) == JsonValueScanner::Step::kLast) end_key();
      return;
    case State::kColon:
      expect(c, ':', State::kValue);
      scanner_ = {};
      value_.clear();
      return;
    case State::kValue:
      return take_value(c, out);
    case State::kNext:
      if (c == '}') return end_object(out);
      return expect(c, ',', State::kKey);
    case State::kDone:
    case State::kBroken:
      return;
  }
}

void JsonCallScanner::expect(char c, char wanted, State next) {
  if (c == wanted) {
    state_ = next;
  } else if (!is_json_space(c)) {
    state_ = State::kBroken;
  }
}

void JsonCallScanner::end_key() {
  const bool known = read_string(value_, key_) &&
                     std::find(kMembers.begin(), kMembers.end(), key_) != kMembers.end();
  state_ = known || named_ ? State::kColon : State::kBroken;
}

void JsonCallScanner::take_value(char c, MessageDelta& out) {
  if (value_.empty() && is_json_space(c)) return;
  const JsonValueScanner::Step step = scanner_.step(c);
  if (step != JsonValueScanner::Step::kBehind) {
    value_.push_back(c);
    // Text is decoded once it is whole; everything else goes on as it is.
    if (is_arguments() && value_[0] != '"') arguments_.push_back(c);
  }
  if (step == JsonValueScanner::Step::kInside) return;
  end_value(out);
  if (step == JsonValueScanner::Step::kBehind && !broken()) take(c, out);
}

void JsonCallScanner::end_value(MessageDelta& out) {
  state_ = State::kNext;
  if (key_ == "name" && !named_) {
    std::string name;
    if (!read_string(value_, name) || name.empty()) {
      state_ = State::kBroken;
      return;
    }
    writer_->begin(std::move(name), out);
    named_ = true;
  } else if (is_arguments() && value_[0] == '"') {
    read_string(value_, arguments_);
  }
  write_arguments(out);
}

void JsonCallScanner::end_object(MessageDelta& out) {
  state_ = named_ ? State::kDone : State::kBroken;
  write_arguments(out);
  if (named_ && !written_) writer_->arguments("{}", out);
}

void JsonCallScanner::write_arguments(MessageDelta& out) {
  if (!named_ || arguments_.empty()) return;
  writer_->arguments(arguments_, out);
  arguments_.clear();
  written_ = true;
}

}  // namespace vamp
