#include "text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/random.h"
#include "base/test_files.h"
#include "text/detokenizer.h"

namespace vamp {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string from_hex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip) {
  Detokenizer detokenizer(tokenizer, {.skip_special_tokens = skip});
  std::string text;
  for (const TokenId id : ids) text += detokenizer.push(id);
  return text + detokenizer.finish();
}

// Expected ids and texts come from Hugging Face: see tools/make_tokenizer_fixtures.py.
class GoldenTokenizer : public testing::TestWithParam<const char*> {
 protected:
  const Tokenizer tokenizer_ = Tokenizer::load(kGoldenFolder / "tokenizers" / GetParam());
  const json cases_ =
      json::parse(read_text_file(kGoldenFolder / "tokenizers" / GetParam() / "cases.json"));
};

TEST_P(GoldenTokenizer, EncodesAsHuggingFace) {
  int encoded = 0;
  for (const json& test : cases_) {
    if (!test.contains("hex")) continue;
    const std::string text = from_hex(test["hex"]);
    EXPECT_EQ(tokenizer_.encode(text), test["ids"].get<std::vector<TokenId>>()) << text;
    ++encoded;
  }
  EXPECT_GT(encoded, 140);
}

TEST_P(GoldenTokenizer, DecodesAsHuggingFace) {
  int number = 0;  // special tokens were skipped in every other case
  for (const json& test : cases_) {
    const auto ids = test["ids"].get<std::vector<TokenId>>();
    const auto decoded = test["decoded"].get<std::string>();
    const bool skip = !test.contains("hex") || number++ % 2 == 0;
    EXPECT_EQ(tokenizer_.decode(ids, skip), decoded) << test;
    if (!test.contains("hex")) continue;
    EXPECT_EQ(streamed(tokenizer_, ids, skip), decoded) << test;
  }
}

TEST_P(GoldenTokenizer, IsTheSameOnAllThreads) {
  std::vector<std::thread> threads;
  std::vector<int> faults(4);
  for (int& count : faults) {
    threads.emplace_back([&] {
      for (const json& test : cases_) {
        if (!test.contains("hex")) continue;
        count +=
            tokenizer_.encode(from_hex(test["hex"])) != test["ids"].get<std::vector<TokenId>>();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(faults, testing::Each(0));
}

// Whatever the family does to a text, none is taken for longer than it is.
TEST_P(GoldenTokenizer, RefusesByLengthOnlyWhatIsLonger) {
  std::string all;
  for (const json& test : cases_) {
    if (!test.contains("hex")) continue;
    const std::string text = from_hex(test["hex"]);
    const auto ids = test["ids"].get<std::vector<TokenId>>();
    EXPECT_EQ(tokenizer_.encode_unless_longer(text, true, ids.size()), ids) << text;
    all += text + std::string(1000, ' ');
  }
  EXPECT_TRUE(tokenizer_.encode_unless_longer(all, true, tokenizer_.encode(all).size()));
}

TEST(Tokenizer, RefusesFarTooLongTextsByTheirLength) {
  const std::string text(1'000'000, 'x');
  for (const char* family : {"gpt2", "o200k", "llama"}) {
    const Tokenizer tokenizer = Tokenizer::load(kGoldenFolder / "tokenizers" / family);
    EXPECT_FALSE(tokenizer.encode_unless_longer(text, true, 1000)) << family;
    EXPECT_TRUE(tokenizer.encode_unless_longer("some text", true, 1)) << family;  // near enough
  }
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenTokenizer,
                         testing::Values("gpt2", "o200k", "llama", "metaspace"),
                         [](const auto& test) { return std::string(test.param); });

TEST(Tokenizer, KnowsItsTokens) {
  const Tokenizer tokenizer = Tokenizer::load(kGoldenFolder / "tokenizers" / "gpt2");
  const TokenId begin = tokenizer.id_of("<s>").value();
  EXPECT_TRUE(tokenizer.is_special(begin));
  EXPECT_EQ(tokenizer.token(begin), "<s>");
  EXPECT_FALSE(tokenizer.is_special(tokenizer.id_of("<think>").value()));
  EXPECT_EQ(tokenizer.bytes(tokenizer.id_of("Ġ").value()), " ");
  EXPECT_EQ(tokenizer.id_of("no such token"), std::nullopt);
  EXPECT_EQ(tokenizer.token(-1), "");
  EXPECT_EQ(tokenizer.token(static_cast<TokenId>(tokenizer.id_count())), "");
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{-1, 1 << 30}), "");
}

TEST(Tokenizer, SpecialTokensOfTheTemplateCanBeLeftOut) {
  const Tokenizer tokenizer = Tokenizer::load(kGoldenFolder / "tokenizers" / "llama");
  std::vector<TokenId> ids = tokenizer.encode("some text", true);
  ASSERT_GT(ids.size(), 2u);
  EXPECT_EQ(ids.front(), tokenizer.id_of("<s>"));
  EXPECT_EQ(ids.back(), tokenizer.id_of("</s>"));
  ids.erase(ids.begin());
  ids.pop_back();
  EXPECT_EQ(tokenizer.encode("some text", false), ids);
}

// A million letters without a space are one word to every family. With a scan for each merge this
// would take hours: the test's own time limit is the check.
TEST(Tokenizer, LongWordsTakeNoQuadraticTime) {
  for (const char* family : {"gpt2", "o200k", "llama", "metaspace"}) {
    const Tokenizer tokenizer = Tokenizer::load(kGoldenFolder / "tokenizers" / family);
    for (const std::string_view unit : {"a", "ab", " ", "\n", "7", "é", "x "}) {
      std::string text;
      while (text.size() < 200'000) text += unit;
      const std::vector<TokenId> ids = tokenizer.encode(text, false);
      EXPECT_GT(ids.size(), 0u);
      if (std::string_view(family) == "metaspace") continue;  // loses the first space
      EXPECT_EQ(tokenizer.decode(ids), text) << family;
    }
  }
}

// Both ways of merging give the same: words around the length at which one hands over to the other,
// cut differently by the cache.
TEST(Tokenizer, LongAndShortWordsMergeAlike) {
  const Tokenizer tokenizer = Tokenizer::load(kGoldenFolder / "tokenizers" / "gpt2");
  Random random(7);
  for (int round = 0; round < 200; ++round) {
    std::string word;
    const int64_t size = random.between(40, 60);
    for (int64_t i = 0; i < size; ++i) word.push_back("etaoins"[random.below(7)]);
    // Twice the word with a letter between that nothing merges with: a long word.
    const std::vector<TokenId> once = tokenizer.encode(word, false);
    const std::vector<TokenId> twice = tokenizer.encode(word + "\x01" + word, false);
    std::vector<TokenId> expected = once;
    const std::vector<TokenId> middle = tokenizer.encode("\x01", false);
    expected.insert(expected.end(), middle.begin(), middle.end());
    expected.insert(expected.end(), once.begin(), once.end());
    EXPECT_EQ(twice, expected) << word;
  }
}

json minimal() {
  return json::parse(R"({"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2},
                         "merges": ["a b"]}, "pre_tokenizer": {"type": "ByteLevel",
                         "add_prefix_space": false}, "decoder": {"type": "ByteLevel"}})");
}

std::string fault_of(const json& file) {
  try {
    const Tokenizer tokenizer(file.dump(), "tokenizer.json");
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Tokenizer, ReadsAMinimalFile) {
  const Tokenizer tokenizer(minimal().dump(), "tokenizer.json");
  EXPECT_EQ(tokenizer.encode("abba"), (std::vector<TokenId>{2, 1, 0}));
  EXPECT_EQ(tokenizer.encode("axb"),
            std::vector<TokenId>{2});  // x has no token and leaves no trace
}

struct BadFile {
  const char* patch;     // merged into the minimal file
  const char* expected;  // part of the message
};

class BadTokenizer : public testing::TestWithParam<BadFile> {};

TEST_P(BadTokenizer, IsRefusedByName) {
  json file = minimal();
  file.merge_patch(json::parse(GetParam().patch));
  const std::string fault = fault_of(file);
  EXPECT_THAT(fault, HasSubstr("tokenizer.json: "));
  EXPECT_THAT(fault, HasSubstr(GetParam().expected));
}

INSTANTIATE_TEST_SUITE_P(
    Files, BadTokenizer,
    testing::Values(
        BadFile{R"({"model": {"type": "Unigram"}})", "model \"Unigram\" is not supported"},
        BadFile{R"({"model": {"type": "WordPiece"}})", "model \"WordPiece\" is not supported"},
        BadFile{R"({"model": null})", "has no \"model\""},
        BadFile{R"({"model": {"dropout": 0.1}})", "dropout"},
        BadFile{R"({"model": {"end_of_word_suffix": "</w>"}})", "end_of_word_suffix"},
        BadFile{R"({"model": {"vocab": []}})", "\"vocab\" of model is not an object"},
        BadFile{R"({"model": {"vocab": {"c": -1}}})", "id of token \"c\" is -1"},
        BadFile{R"({"model": {"vocab": {"c": 99999999999}}})", "id of token \"c\""},
        BadFile{R"({"model": {"vocab": {"c": 18446744073709551615}}})", "id of token \"c\""},
        BadFile{R"({"model": {"vocab": {"c": 1.5}}})", "id of token \"c\" is 1.5"},
        BadFile{R"({"model": {"vocab": {"c": 1}}})", "share id 1"},
        BadFile{R"({"model": {"merges": ["a"]}})", "merge 0 of the model is not a pair"},
        BadFile{R"({"model": {"merges": ["a b c"]}})", "merge 0 of the model is not a pair"},
        BadFile{R"({"model": {"merges": [["a", 1]]}})", "merge 0 of the model is not a pair"},
        BadFile{R"({"model": {"merges": ["a x"]}})", "lacks \"x\""},
        BadFile{R"({"model": {"merges": ["b a"]}})", "lacks \"ba\""},
        BadFile{R"({"model": {"unk_token": "?"}})", "unk_token \"?\""},
        BadFile{R"({"model": {"ignore_merges": 1}})", "\"ignore_merges\" of model"},
        BadFile{R"({"normalizer": {"type": "BertNormalizer"}})", "normalizer \"BertNormalizer\""},
        BadFile{R"({"normalizer": "NFC"})", "normalizer is not an object"},
        BadFile{R"({"normalizer": {"type": "Replace", "pattern": {"String": ""}, "content": ""}})",
                "empty pattern"},
        BadFile{R"({"pre_tokenizer": {"type": "UnicodeScripts"}})", "\"UnicodeScripts\""},
        BadFile{R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(a"},
                    "behavior": "Isolated"}})",
                "\"(a\" is invalid"},
        BadFile{R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "a"},
                    "behavior": "Sideways"}})",
                "\"Sideways\""},
        BadFile{R"({"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "[a&&b]"},
                    "behavior": "Isolated"}})",
                "&& in a class"},
        BadFile{R"({"decoder": {"type": "WordPiece"}})", "decoder \"WordPiece\""},
        BadFile{R"({"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"},
                    {"type": "ByteFallback"}]}})",
                "decoder \"ByteFallback\""},
        BadFile{R"({"post_processor": {"type": "BertProcessing"}})", "\"BertProcessing\""},
        BadFile{R"({"added_tokens": {}})", "not an array"},
        BadFile{R"({"added_tokens": [{"id": 7, "content": "c"}]})", "has id 7"},
        BadFile{R"({"added_tokens": [{"id": 3, "content": ""}]})", "empty or given twice"}));

TEST(Tokenizer, RefusesWhatIsNoJson) {
  EXPECT_THROW(Tokenizer("{\"model\":", "x"), Error);
  EXPECT_THROW(Tokenizer("", "x"), Error);
  EXPECT_THROW(Tokenizer("[1, 2]", "x"), Error);
  EXPECT_THROW(Tokenizer("{\"model\": \"\xff\"}", "x"), Error);
  EXPECT_THROW(Tokenizer(std::string(100'000, '['), "x"), Error);
}

TEST(Tokenizer, RefusesDeepSequences) {
  json nested = {{"type", "ByteLevel"}};
  for (int i = 0; i < 100; ++i) nested = {{"type", "Sequence"}, {"pretokenizers", {nested}}};
  json file = minimal();
  file["pre_tokenizer"] = nested;
  EXPECT_THAT(fault_of(file), HasSubstr("nested deeper"));
}

TEST(Tokenizer, RefusesTextThatExplodes) {
  json replace = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(60, 'a')}};
  json file = minimal();
  file["normalizer"] = {{"type", "Sequence"},
                        {"normalizers", {replace, replace, replace, replace}}};
  const Tokenizer tokenizer(file.dump(), "tokenizer.json");
  EXPECT_THROW(tokenizer.encode(std::string(10'000, 'a')), Error);
}

TEST(Tokenizer, AnExponentialExpressionEndsInAnError) {
  json file = minimal();
  file["pre_tokenizer"] = json::parse(R"({"type": "Split", "behavior": "Isolated",
                                          "pattern": {"Regex": "(?:(?:a|b|ab)+)+[0-9]"}})");
  const Tokenizer tokenizer(file.dump(), "tokenizer.json");
  std::string text;
  for (int i = 0; i < 40; ++i) text += "ab";
  EXPECT_THROW(tokenizer.encode(text), Error);
}

}  // namespace
}  // namespace vamp
