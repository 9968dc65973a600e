#include "text/detokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/random.h"
#include "base/test_files.h"
#include "text/utf8.h"

namespace vamp {
namespace {

class DetokenizerTest : public testing::TestWithParam<const char*> {
 protected:
  const Tokenizer tokenizer_ = Tokenizer::load(kGoldenFolder / "tokenizers" / GetParam());
};

TEST_P(DetokenizerTest, GivesWholeCharactersAndAllOfThem) {
  const std::string text = "naïve 😀👩‍👩‍👧 日本語 ABC <think> \xFF ok";
  const std::vector<TokenId> ids = tokenizer_.encode(text, false);
  Detokenizer detokenizer(tokenizer_, {});
  std::string all;
  for (const TokenId id : ids) {
    const std::string part = detokenizer.push(id);
    EXPECT_TRUE(utf8::is_valid(part));
    all += part;
  }
  all += detokenizer.finish();
  EXPECT_EQ(all, tokenizer_.decode(ids));
}

TEST_P(DetokenizerTest, SkipsOrKeepsSpecialTokens) {
  const std::vector<TokenId> ids = tokenizer_.encode("a<s>b", false);
  for (const bool skip : {true, false}) {
    Detokenizer detokenizer(tokenizer_, {.skip_special_tokens = skip});
    std::string all;
    for (const TokenId id : ids) all += detokenizer.push(id);
    all += detokenizer.finish();
    EXPECT_EQ(all.find("<s>") == std::string::npos, skip) << all;
  }
}

// Whatever the tokens, the text ends right before the first stop string.
TEST_P(DetokenizerTest, StopsAcrossTokenBorders) {
  Random random(11);
  for (int round = 0; round < 300; ++round) {
    std::string text;
    for (int i = 0; i < 60; ++i) text.push_back("abc re"[random.below(6)]);
    std::string stop;
    const int64_t size = random.between(1, 4);
    for (int64_t i = 0; i < size; ++i) stop.push_back("abc re"[random.below(6)]);
    const std::vector<TokenId> ids = tokenizer_.encode(text, false);
    const std::string whole = tokenizer_.decode(ids);
    const bool include = random.chance(0.5);
    Detokenizer detokenizer(tokenizer_,
                            {.stop = {"never there", stop}, .include_stop_in_output = include});
    std::string got;
    for (const TokenId id : ids) got += detokenizer.push(id);
    got += detokenizer.finish();
    const size_t at = whole.find(stop);
    EXPECT_EQ(detokenizer.stopped(), at != std::string::npos);
    EXPECT_EQ(got,
              at == std::string::npos ? whole : whole.substr(0, at + (include ? stop.size() : 0)));
  }
}

INSTANTIATE_TEST_SUITE_P(Families, DetokenizerTest, testing::Values("gpt2", "o200k", "llama"),
                         [](const auto& test) { return std::string(test.param); });

TEST(Detokenizer, HoldsBackNoMoreThanTheStopStringNeeds) {
  const Tokenizer tokenizer = Tokenizer::load(kGoldenFolder / "tokenizers" / "gpt2");
  Detokenizer detokenizer(tokenizer, {.stop = {"xyz"}});
  const auto id = [&](const char* token) { return tokenizer.id_of(token).value(); };
  EXPECT_EQ(detokenizer.push(id("a")), "a");
  EXPECT_EQ(detokenizer.push(id("x")), "");
  EXPECT_EQ(detokenizer.push(id("x")), "x");
  EXPECT_EQ(detokenizer.push(id("y")), "");
  EXPECT_EQ(detokenizer.push(id("b")), "xyb");
  EXPECT_EQ(detokenizer.push(id("x")), "");
  EXPECT_EQ(detokenizer.finish(), "x");
  EXPECT_FALSE(detokenizer.stopped());
}

TEST(Detokenizer, OfSeveralStopStringsTheFirstInTheTextCounts) {
  const Tokenizer tokenizer = Tokenizer::load(kGoldenFolder / "tokenizers" / "gpt2");
  Detokenizer detokenizer(tokenizer, {.stop = {"zz", "bc", ""}});
  std::string got;
  for (const TokenId id : tokenizer.encode("abczz", false)) got += detokenizer.push(id);
  EXPECT_EQ(got, "a");
  EXPECT_EQ(detokenizer.stop_reason(), "bc");
  EXPECT_EQ(detokenizer.push(tokenizer.id_of("a").value()), "");
}

}  // namespace
}  // namespace vamp
