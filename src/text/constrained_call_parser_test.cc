// Calls that a constraint makes: the whole output is one, or a list of them.
#include <gtest/gtest.h>

#include "text/output_parser_test_support.h"

namespace vamp {
namespace {

using test::Message;
using test::parse_all_ways;

TEST(ConstrainedCallParser, OneCallIsTheWholeOutput) {
  const OutputParserOptions named{.named_tool = "f"};
  EXPECT_EQ(parse_all_ways(named, "{\"a\": [1, {}]}"),
            (Message{"", "", {{"f", "{\"a\": [1, {}]}"}}}));
  EXPECT_EQ(parse_all_ways(named, ""), (Message{}));
  const OutputParserOptions list{.call_list = true};
  EXPECT_EQ(parse_all_ways(list,
                           " [ {\"name\": \"f\", \"parameters\": {\"a\": \"]}\"}} ,\n"
                           "{\"name\":\"g\",\"parameters\":{}}]\n"),
            (Message{"", "", {{"f", "{\"a\": \"]}\"}"}, {"g", "{}"}}}));
  EXPECT_EQ(parse_all_ways({.reasoning_parser = "qwen3", .call_list = true},
                           "<think>[</think>[{\"name\": \"f\", \"parameters\": {}}]"),
            (Message{"[", "", {{"f", "{}"}}}));
}

TEST(ConstrainedCallParser, ACallMayBeCutShortOrNone) {
  const OutputParserOptions list{.call_list = true};
  EXPECT_EQ(parse_all_ways(list, "[{\"name\": \"f\", \"parameters\": {\"a\": [1"),
            (Message{"", "", {{"f", "{\"a\": [1"}}}));
  for (const std::string text : {"[{\"na", " [", "so [{", "[3]", "[{\"x\": 1}]"})
    EXPECT_EQ(parse_all_ways(list, text), (Message{"", text, {}}));
  EXPECT_EQ(parse_all_ways(list, "[{\"name\": \"f\", \"parameters\": {}}] and more"),
            (Message{"", "and more", {{"f", "{}"}}}));
}

}  // namespace
}  // namespace vamp
