#include "base/units.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace vamp {
namespace {

TEST(ParseBytes, BinaryAndDecimalUnits) {
  EXPECT_EQ(parse_bytes("2GiB"), 2 * kGiB);
  EXPECT_EQ(parse_bytes("512 MiB"), 512 * kMiB);
  EXPECT_EQ(parse_bytes("1.5GB"), 1'500'000'000u);
  EXPECT_EQ(parse_bytes("4096"), 4096u);
}

TEST(ParseBytes, RefusesWhatIsNotASize) {
  for (const char* text : {"", "GiB", "-1", "1e30GiB", "0x10", "12parsecs", "nan", "inf"}) {
    EXPECT_THROW(parse_bytes(text), Error) << text;
  }
}

TEST(FormatBytes, TwoDecimals) {
  EXPECT_EQ(format_bytes(6 * kMiB), "6.00 MiB");
  EXPECT_EQ(format_bytes(100), "100 B");
}

TEST(Check, ThrowsWithConditionAndMessage) {
  try {
    VAMP_CHECK(1 == 2, "left {}", 1);
    FAIL() << "did not throw";
  } catch (const InvariantError& e) {
    EXPECT_NE(std::string(e.what()).find("1 == 2"), std::string::npos);
    EXPECT_NE(std::string(e.what()).find("left 1"), std::string::npos);
  }
}

}  // namespace
}  // namespace vamp
