// Oniguruma (Ruby syntax) to PCRE2. Where the same text means something else to the two:
//   \s \S     PCRE2 counts U+180E as space, Unicode no longer does
//   \d \w \W  PCRE2's \w lacks marks and connectors
//   \v        a character in Ruby, a class in PCRE2
//   \uHHHH    unknown to PCRE2
//   \p{Han}   a script in Ruby, script extensions in PCRE2
// Refused: nested classes, &&, POSIX brackets, (?m), (?x), inline flags but at the start, \h \R \b,
// backreferences, {,n}, {n}? and {n,m}+.
#include <array>
#include <cctype>

#include "base/error.h"
#include "text/regex.h"

namespace vamp {
namespace {

constexpr std::string_view kWordProperties = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::array kScripts = {
    "Arabic",  "Armenian", "Bengali",  "Cyrillic", "Devanagari", "Ethiopic",  "Georgian",
    "Greek",   "Gujarati", "Gurmukhi", "Han",      "Hangul",     "Hebrew",    "Hiragana",
    "Kannada", "Katakana", "Khmer",    "Lao",      "Latin",      "Malayalam", "Mongolian",
    "Myanmar", "Sinhala",  "Tamil",    "Telugu",   "Thai",       "Tibetan"};

class Translator {
 public:
  explicit Translator(std::string_view pattern) : in_(pattern) {}

  std::string run() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\') {
        escape(false);
      } else if (c == '[') {
        character_class();
      } else if (c == '(') {
        group();
      } else if (c == '{') {
        interval();
      } else {
        copy(1);
      }
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw Error("regular expression \"{}\": {} at byte {} is not supported", in_, what, at_);
  }
  bool has(std::string_view text) const { return in_.substr(at_).starts_with(text); }
  char peek(size_t ahead) const { return at_ + ahead < in_.size() ? in_[at_ + ahead] : '\0'; }
  void copy(size_t count) {
    out_.append(in_.substr(at_, count));
    at_ += count;
  }
  void replace(size_t count, std::string_view with) {
    out_.append(with);
    at_ += count;
  }

  void escape(bool in_class) {
    const char c = peek(1);
    switch (c) {
      case 's':
        return replace(2, R"(\p{wspace})");
      case 'S':
        return replace(2, R"(\P{wspace})");
      case 'd':
        return replace(2, R"(\p{Nd})");
      case 'D':
        return replace(2, R"(\P{Nd})");
      case 'w':
        return replace(2, in_class ? kWordProperties : fmt::format("[{}]", kWordProperties));
      case 'W':
        if (in_class) refuse("\\W in a class");
        return replace(2, fmt::format("[^{}]", kWordProperties));
      case 'v':
        return replace(2, R"(\x0b)");
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        return copy(2);
      case 'A':
      case 'z':
      case 'Z':
        if (in_class) refuse("an anchor in a class");
        return copy(2);
      case 'u':
        return hex_escape(2, 4);
      case 'x':
        return peek(2) == '{' ? braced_hex() : hex_escape(2, 2);
      case 'p':
      case 'P':
        return property();
      default:
        break;
    }
    if (c == '\0') refuse("a backslash at the end");
    if (std::isalnum(static_cast<unsigned char>(c))) refuse(fmt::format("\\{}", c));
    if (static_cast<unsigned char>(c) >= 0x80) {
      ++at_;  // PCRE2 has no escaped letters beyond ASCII: the character stands for itself
    } else {
      copy(2);
    }
  }

  void hex_escape(size_t skip, size_t digits) {
    const std::string_view hex = in_.substr(at_ + skip, digits);
    for (const char c : hex) {
      if (!std::isxdigit(static_cast<unsigned char>(c))) refuse("an incomplete hexadecimal escape");
    }
    if (hex.size() != digits) refuse("an incomplete hexadecimal escape");
    if (digits == 2 && hex[0] >= '8') refuse("a byte beyond ASCII");
    out_.append(fmt::format("\\x{{{}}}", hex));
    at_ += skip + digits;
  }

  void braced_hex() {
    const size_t end = in_.find('}', at_);
    if (end == std::string_view::npos) refuse("an unclosed \\x{");
    copy(end + 1 - at_);
  }

  void property() {
    const size_t end = in_.find('}', at_);
    if (peek(2) != '{' || end == std::string_view::npos) refuse("\\p without {name}");
    const std::string_view name = in_.substr(at_ + 3, end - at_ - 3);
    for (const std::string_view script : kScripts) {
      if (name == script) {
        out_.append(fmt::format("\\{}{{sc:{}}}", peek(1), name));
        at_ = end + 1;
        return;
      }
    }
    copy(end + 1 - at_);
  }

  void character_class() {
    copy(peek(1) == '^' ? 2 : 1);
    if (peek(0) == ']') refuse("] first in a class");
    while (at_ < in_.size() && in_[at_] != ']') {
      if (in_[at_] == '\\') {
        escape(true);
      } else if (in_[at_] == '[') {
        refuse("a class in a class");
      } else if (has("&&")) {
        refuse("&& in a class");
      } else {
        copy(1);
      }
    }
    if (at_ == in_.size()) refuse("an unclosed class");
    copy(1);
  }

  void group() {
    if (peek(1) == '*') refuse("(*");
    if (peek(1) != '?') return copy(1);
    for (const std::string_view known :
         {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:"}) {
      if (has(known)) return copy(known.size());
    }
    if (at_ == 0 && has("(?i)")) return copy(4);
    refuse("this kind of group");
  }

  void interval() {
    size_t end = at_ + 1;
    while (end < in_.size() &&
           (std::isdigit(static_cast<unsigned char>(in_[end])) || in_[end] == ',')) {
      ++end;
    }
    if (end == at_ + 1 || end >= in_.size() || in_[end] != '}') return copy(1);  // a literal brace
    const std::string_view body = in_.substr(at_ + 1, end - at_ - 1);
    const char after = end + 1 < in_.size() ? in_[end + 1] : '\0';
    if (body[0] == ',') refuse("{,n}");
    if (after == '+') refuse("{n,m}+");
    if (after == '?' && body.find(',') == std::string_view::npos) refuse("{n}?");
    copy(end + 1 - at_);
  }

  std::string_view in_;
  size_t at_ = 0;
  std::string out_;
};

}  // namespace

std::string translate_regex(std::string_view pattern) {
  return Translator(pattern).run();
}

}  // namespace vamp
