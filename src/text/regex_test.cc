#include "text/regex.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace vamp {
namespace {

std::string first_match(const char* pattern, std::string_view text) {
  RegexScratch scratch;
  Regex::Match match;
  if (!Regex(pattern).find(text, 0, scratch, match)) return "none";
  return std::string(text.substr(match.begin, match.end - match.begin));
}

TEST(Regex, ReadsWhatTheTwoEnginesReadDifferently) {
  EXPECT_EQ(first_match(R"(\s+)", "a\u180e\u3000\u0085b"), "\u3000\u0085");  // U+180E is no space
  EXPECT_EQ(first_match(R"([^\s]+)", " \u180e "), "\u180e");
  EXPECT_EQ(first_match(R"(\w+)", "-a\u0301_\u203f9-"), "a\u0301_\u203f9");
  EXPECT_EQ(first_match(R"([\w]+)", "-é-"), "é");
  EXPECT_EQ(first_match(R"(\d+)", "x\u0663y"), "\u0663");
  EXPECT_EQ(first_match(R"([\v]b)", "\nb\vb"), "\vb");
  EXPECT_EQ(first_match(R"(\u00e9+)", "aéé"), "éé");
  EXPECT_EQ(first_match(R"(^b$)", "a\nb\nc"), "b");
  EXPECT_EQ(first_match(R"((?i:'s))", "x'ſ"), "'ſ");
  EXPECT_EQ(first_match(R"(\p{Han}+)", "あ、漢字"), "漢字");
  EXPECT_EQ(first_match(R"([\p{L}\p{N}]+(?!\S)|x{2}|a{1,3}?)", "xxx"), "xxx");
}

TEST(Regex, RefusesWhatItCannotTranslate) {
  for (const char* pattern :
       {"[a&&b]",  "[a[b]]",  "[[:alpha:]]", "[]a]",   R"(\h)", R"(\R)",  R"(\bx)",  R"((a)\1)",
        "a{,3}",   "a{2}?",   "a{1,2}+",     "(?m:a)", "(?x)a", "a(?i)b", "(*UCP)a", R"([\W])",
        R"(\x80)", R"(\u12)", R"(\pL)",      "\\",     "[a",    R"(\Q)",  "\xff"}) {
    EXPECT_THROW(Regex{pattern}, Error) << pattern;
  }
  EXPECT_THROW(Regex{std::string(100'000, 'a')}, Error);
}

TEST(Regex, SearchesFromWhereItIsTold) {
  const Regex regex("(?<=a)b");
  RegexScratch scratch;
  Regex::Match match;
  ASSERT_TRUE(regex.find("ab", 1, scratch, match));  // what lies before still counts
  EXPECT_EQ(match.begin, 1u);
  EXPECT_FALSE(regex.find("ab", 2, scratch, match));
}

}  // namespace
}  // namespace vamp
