#include "text/utf8.h"

#include <gtest/gtest.h>

namespace vamp::utf8 {
namespace {

std::string replaced(std::string_view text) {
  std::string out;
  append_replaced(text, out);
  return out;
}

// The examples of the Unicode standard, section 3.9, tables 3-8 to 3-11.
TEST(Utf8, ReplacesMaximalParts) {
  EXPECT_EQ(replaced("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(replaced("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(replaced("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA\uFFFD\uFFFDB");
  EXPECT_EQ(replaced("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), "\uFFFD\uFFFD\uFFFD\uFFFDA");
  EXPECT_EQ(replaced("twelve bytes\xE2\x82"), "twelve bytes\uFFFD");
  EXPECT_EQ(replaced("a\xE2\x82\xAC"), "a\u20AC");
}

TEST(Utf8, EveryCharacterComesBack) {
  for (char32_t c = 0; c < 0x110000; ++c) {
    if (c == 0xD800) c = 0xE000;
    std::string bytes;
    append(c, bytes);
    const Decoded decoded = decode(bytes, 0);
    ASSERT_TRUE(decoded.valid) << static_cast<uint32_t>(c);
    ASSERT_EQ(decoded.code_point, c);
    ASSERT_EQ(static_cast<size_t>(decoded.length), bytes.size());
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      ASSERT_EQ(complete_length("xy" + bytes.substr(0, cut)), 2u);
    }
    ASSERT_EQ(complete_length(bytes), bytes.size());
  }
}

TEST(Utf8, BrokenEndsAreNotWaitedFor) {
  EXPECT_EQ(complete_length("a\xFF"), 2u);
  EXPECT_EQ(complete_length("a\x80\x80\x80\x80"), 5u);
  EXPECT_EQ(complete_length("a\xED\xA0"), 3u);  // a surrogate: nothing can make it valid
  EXPECT_EQ(complete_length(""), 0u);
}

}  // namespace
}  // namespace vamp::utf8
