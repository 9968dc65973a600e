// Regular expressions of tokenizer.json. They are written for Oniguruma in Ruby's syntax; this
// class rewrites them for PCRE2, and refuses what the two engines read differently rather than
// guess.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

namespace vamp {

// What one thread needs to match: PCRE2's match data and JIT stack. Serves any Regex; one thread.
class RegexScratch {
 public:
  RegexScratch();
  ~RegexScratch();
  RegexScratch(const RegexScratch&) = delete;
  RegexScratch& operator=(const RegexScratch&) = delete;

 private:
  friend class Regex;
  struct Handles;
  std::unique_ptr<Handles> handles_;
};

// One compiled expression (Unicode, JIT where PCRE2 has it). Immutable: any thread, each with a
// scratch of its own.
class Regex {
 public:
  struct Match {
    size_t begin = 0, end = 0;
  };

  // Throws Error when the pattern is invalid, too long, or uses what is not supported.
  explicit Regex(std::string_view pattern);
  ~Regex();
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;

  // The leftmost match in `text` (valid UTF-8) at or after byte `from`; false when there is none.
  // Throws Error when the match takes too many steps.
  bool find(std::string_view text, size_t from, RegexScratch& scratch, Match& match) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
};

// The rewriting alone: Oniguruma's syntax in, PCRE2's out.
std::string translate_regex(std::string_view pattern);

}  // namespace vamp
