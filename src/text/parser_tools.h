// What the output parsers share: looking for markers in text that comes in pieces, and writing the
// deltas of tool calls.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <string>
#include <string_view>

#include "base/random.h"
#include "text/output_parser.h"

namespace vamp {

// The first of the markers in a text; of several at one place the one listed first.
struct MarkerMatch {
  size_t at = std::string::npos;
  std::string_view marker;
  explicit operator bool() const { return at != std::string::npos; }
  size_t end() const { return at + marker.size(); }
};
MarkerMatch find_marker(std::string_view text, std::initializer_list<std::string_view> markers);

// How many bytes at the end of `text` could be the beginning of a marker.
size_t partial_marker(std::string_view text, std::initializer_list<std::string_view> markers);

bool is_json_space(char c);
std::string_view trimmed(std::string_view text);

// Content around tool calls: white space next to a call belongs to the call, not to the content.
class ContentWriter {
 public:
  void write(std::string_view text, MessageDelta& out);
  // A tool call begins: white space written last, and not given out yet, goes.
  void before_call() {
    space_.clear();
    after_call_ = true;
  }
  void finish(MessageDelta& out);

 private:
  std::string space_;        // at the end of what was written
  bool after_call_ = false;  // nothing but white space since the last call
};

// Numbers the calls, gives them ids, and writes their deltas.
class ToolCallWriter {
 public:
  enum class IdStyle { kOpenAi, kMistral };  // "call_" and 24 characters; nine characters
  ToolCallWriter(uint64_t seed, IdStyle style) : random_(seed), style_(style) {}

  void begin(std::string name, MessageDelta& out);
  void arguments(std::string_view text, MessageDelta& out);
  int count() const { return count_; }

 private:
  Random random_;
  IdStyle style_;
  int count_ = 0;
};

// Follows one JSON value through text that comes in pieces: an object, a list or a string to its
// end, anything else up to a comma, a closing bracket or white space.
class JsonValueScanner {
 public:
  enum class Step { kInside, kLast, kBehind };  // the character belongs, ends it, or lies behind it
  Step step(char c);
  // How many bytes of `text` belong to the value.
  size_t push(std::string_view text);
  bool done() const { return done_; }

 private:
  int depth_ = 0;
  bool in_string_ = false, escaped_ = false, begun_ = false, done_ = false;
};

}  // namespace vamp
