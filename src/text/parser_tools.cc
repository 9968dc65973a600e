#include "text/parser_tools.h"

#include <algorithm>

namespace vamp {

MarkerMatch find_marker(std::string_view text, std::initializer_list<std::string_view> markers) {
  MarkerMatch best;
  for (const std::string_view marker : markers) {
    const size_t at = text.find(marker);
    if (at < best.at) best = {at, marker};
  }
  return best;
}

size_t partial_marker(std::string_view text, std::initializer_list<std::string_view> markers) {
  size_t longest = 0;
  for (const std::string_view marker : markers) {
    for (size_t size = std::min(text.size(), marker.size() - 1); size > longest; --size) {
      if (text.ends_with(marker.substr(0, size))) longest = size;
    }
  }
  return longest;
}

bool is_json_space(char c) {
  return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_json_space(text.back())) text.remove_suffix(1);
  return text;
}

void ContentWriter::write(std::string_view text, MessageDelta& out) {
  size_t solid = text.size();
  while (solid > 0 && is_json_space(text[solid - 1])) --solid;
  if (after_call_) {
    const size_t skipped = static_cast<size_t>(
        std::find_if_not(text.begin(), text.end(), is_json_space) - text.begin());
    text.remove_prefix(skipped);
    solid -= std::min(solid, skipped);
    if (text.empty()) return;
    after_call_ = false;
  }
  if (solid > 0) {
    out.content.append(space_).append(text.substr(0, solid));
    space_.clear();
  }
  space_.append(text.substr(solid));
}

void ContentWriter::finish(MessageDelta& out) {
  out.content.append(space_);
  space_.clear();
}

void ToolCallWriter::begin(std::string name, MessageDelta& out) {
  constexpr std::string_view kLetters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
  std::string id = style_ == IdStyle::kOpenAi ? "call_" : "";
  const int letters = style_ == IdStyle::kOpenAi ? 24 : 9;
  for (int i = 0; i < letters; ++i) id.push_back(kLetters[random_.below(kLetters.size())]);
  out.tool_calls.push_back({count_++, std::move(id), std::move(name), ""});
}

void ToolCallWriter::arguments(std::string_view text, MessageDelta& out) {
  if (text.empty()) return;
  if (out.tool_calls.empty() || out.tool_calls.back().index != count_ - 1) {
    out.tool_calls.push_back({count_ - 1, "", "", ""});
  }
  out.tool_calls.back().arguments.append(text);
}

JsonValueScanner::Step JsonValueScanner::step(char c) {
  if (in_string_) {
    in_string_ = escaped_ || c != '"';
    escaped_ = !escaped_ && c == '\\';
  } else if (depth_ == 0 && (c == ',' || c == '}' || c == ']' || (begun_ && is_json_space(c)))) {
    done_ = true;
    return Step::kBehind;
  } else if (c == '"') {
    in_string_ = begun_ = true;
    return Step::kInside;
  } else if (c == '{' || c == '[') {
    begun_ = true;
    ++depth_;
    return Step::kInside;
  } else if (c == '}' || c == ']') {
    --depth_;
  } else {
    begun_ = begun_ || !is_json_space(c);
    return Step::kInside;
  }
  done_ = !in_string_ && depth_ == 0;
  return done_ ? Step::kLast : Step::kInside;
}

size_t JsonValueScanner::push(std::string_view text) {
  for (size_t i = 0; i < text.size() && !done_; ++i) {
    switch (step(text[i])) {
      case Step::kInside:
        break;
      case Step::kLast:
        return i + 1;
      case Step::kBehind:
        return i;
    }
  }
  return done_ ? 0 : text.size();
}

}  // namespace vamp
