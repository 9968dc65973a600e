// UTF-8 at the byte level. Broken input is replaced as Python and Rust replace it: each maximal
// part of a truncated or illegal sequence becomes one U+FFFD (Unicode 15, section 3.9, table 3-7).
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace vamp::utf8 {

inline constexpr char32_t kReplacement = 0xFFFD;
inline constexpr std::string_view kReplacementBytes = "\xEF\xBF\xBD";

struct Decoded {
  char32_t code_point = kReplacement;
  int length = 1;  // bytes taken, at least 1
  bool valid = false;
  bool truncated = false;  // not valid, but more bytes after the end of the text could make it so
};

// Decodes the character at text[at], at < text.size().
Decoded decode(std::string_view text, size_t at);

void append(char32_t code_point, std::string& out);

bool is_valid(std::string_view text);

// Appends `text` with each broken part replaced.
void append_replaced(std::string_view text, std::string& out);

// Length of `text` without the unfinished character at its end, if it has one.
size_t complete_length(std::string_view text);

}  // namespace vamp::utf8
