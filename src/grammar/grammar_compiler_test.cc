#include "grammar/grammar_compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "base/error.h"
#include "base/random.h"
#include "grammar/reasoning_grammar.h"

namespace vamp {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class GrammarTest : public testing::Test {
 protected:
  bool allowed(TokenId token) const {
    return (mask_[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
  }

  std::shared_ptr<const TokenGrammar> compile(const OutputConstraint& constraint) {
    return compiler_.compile(constraint);
  }

  // Whether the text is a whole output: each of its tokens may come, then the end.
  bool accepts(const OutputConstraint& constraint, const std::string& text) {
    const auto matcher = compile(constraint)->start({});
    for (const TokenId token : tokenizer_.encode(text, false)) {
      matcher->fill(mask_);
      const bool may = allowed(token);
      EXPECT_EQ(matcher->accept(token), may) << tokenizer_.bytes(token);
      if (!may) return false;
    }
    matcher->fill(mask_);
    return allowed(end_);
  }

  // An output of randomly chosen allowed tokens.
  std::string walk(const OutputConstraint& constraint, Random& random, int max_tokens = 4000) {
    const auto matcher = compile(constraint)->start({});
    std::string text;
    for (int i = 0; i < max_tokens; ++i) {
      matcher->fill(mask_);
      if (allowed(end_)) return text;
      std::vector<TokenId> choices;
      for (TokenId token = 0; token < vocab_; ++token) {
        if (allowed(token)) choices.push_back(token);
      }
      EXPECT_FALSE(choices.empty()) << text;
      if (choices.empty()) return text;
      const TokenId token = choices[random.below(choices.size())];
      EXPECT_LT(static_cast<size_t>(token), tokenizer_.id_count());
      EXPECT_TRUE(matcher->accept(token));
      text += tokenizer_.bytes(token);
    }
    ADD_FAILURE() << "no end: " << text;
    return text;
  }

  std::string error(const OutputConstraint& constraint) {
    try {
      compile(constraint);
    } catch (const Error& error) {
      return error.what();
    }
    return "accepted";
  }

  static constexpr int kPadding = 37;  // models' logits have more rows than tokens
  const Tokenizer tokenizer_ =
      Tokenizer::load(std::filesystem::path(VAMP_SOURCE_DIR) / "tests/golden/tokenizers/gpt2");
  const int vocab_ = static_cast<int>(tokenizer_.id_count()) + kPadding;
  const TokenId end_ = vocab_ - kPadding - 1;
  GrammarCompiler compiler_{tokenizer_, vocab_, std::vector<TokenId>{end_}};
  std::vector<uint32_t> mask_ = std::vector<uint32_t>((static_cast<size_t>(vocab_) + 31) / 32);
};

const char* const kPerson = R"({"type": "object", "properties": {
    "name": {"type": "string", "maxLength": 5}, "age": {"type": "integer", "minimum": 0, "maximum": 130},
    "kind": {"enum": ["a", "b", null]}}, "required": ["name", "age", "kind"],
    "additionalProperties": false})";

TEST_F(GrammarTest, JsonObjectIsAnyObjectAndNothingElse) {
  const JsonObjectConstraint object;
  EXPECT_TRUE(accepts(object, R"({})"));
  EXPECT_TRUE(accepts(object, R"({"a": [1, 2.5e3, {"b": null}], "ü": "x\n"})"));
  EXPECT_FALSE(accepts(object, R"([1])"));
  EXPECT_FALSE(accepts(object, R"("text")"));
  EXPECT_FALSE(accepts(object, R"({"a": 1)"));
  EXPECT_FALSE(accepts(object, R"({"a": 1} and more)"));
  EXPECT_FALSE(accepts(object, R"({'a': 1})"));
}

TEST_F(GrammarTest, SchemaIsHeldToTheLetter) {
  const JsonSchemaConstraint person{kPerson};
  EXPECT_TRUE(accepts(person, R"({"name": "Ann", "age": 130, "kind": null})"));
  EXPECT_FALSE(accepts(person, R"({"name": "Ann", "age": 131, "kind": null})"));
  EXPECT_FALSE(accepts(person, R"({"name": "Annabel", "age": 1, "kind": "a"})"));
  EXPECT_FALSE(accepts(person, R"({"name": "Ann", "age": 1})"));
  EXPECT_FALSE(accepts(person, R"({"name": "Ann", "age": 1, "kind": "a", "more": 1})"));
  EXPECT_FALSE(accepts(person, R"({"name": "Ann", "age": 1, "kind": "c"})"));
}

TEST_F(GrammarTest, WhateverIsSampledFitsTheSchema) {
  Random random(7);
  for (int i = 0; i < 20; ++i) {
    const std::string text = walk(JsonSchemaConstraint{kPerson}, random);
    const json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(value.is_object()) << text;
    EXPECT_EQ(value.size(), 3u) << text;
    EXPECT_TRUE(value["age"].is_number_integer() && value["age"] >= 0 && value["age"] <= 130);
    EXPECT_TRUE(value["name"].is_string());
    EXPECT_TRUE(value["kind"] == "a" || value["kind"] == "b" || value["kind"].is_null()) << text;
  }
}

TEST_F(GrammarTest, RegexChoiceAndEbnf) {
  const RegexConstraint date{R"(\d{4}-\d{2}-\d{2})"};
  EXPECT_TRUE(accepts(date, "2031-12-24"));
  EXPECT_FALSE(accepts(date, "2031-12-2"));
  EXPECT_FALSE(accepts(date, "on 2031-12-24"));
  const ChoiceConstraint choice{{"yes", "no", "a \"quoted\" \\ one\n", "größer"}};
  for (const std::string& text : choice.choices) EXPECT_TRUE(accepts(choice, text)) << text;
  EXPECT_FALSE(accepts(choice, "ye"));
  EXPECT_FALSE(accepts(choice, "yesno"));
  const EbnfConstraint sum{R"(root ::= [0-9]+ ("+" [0-9]+)*)"};
  EXPECT_TRUE(accepts(sum, "12+7+1"));
  EXPECT_FALSE(accepts(sum, "12+"));
  Random random(3);
  for (int i = 0; i < 10; ++i) {
    EXPECT_THAT(choice.choices, testing::Contains(walk(choice, random)));
  }
}

TEST_F(GrammarTest, AfterTheEndAnythingMayComeAndBeforeItNoOtherStop) {
  const std::vector<TokenId> stops = {5};
  const auto matcher = compile(ChoiceConstraint{{"yes"}})->start(stops);
  for (const TokenId token : tokenizer_.encode("yes", false)) EXPECT_TRUE(matcher->accept(token));
  matcher->fill(mask_);
  EXPECT_TRUE(allowed(5));
  EXPECT_FALSE(allowed(end_));
  EXPECT_FALSE(matcher->accept(end_));
  EXPECT_TRUE(matcher->accept(5));
  matcher->fill(mask_);
  EXPECT_TRUE(allowed(0));
  EXPECT_TRUE(matcher->accept(0));
}

TEST_F(GrammarTest, WhatCannotBeEnforcedIsRefusedByName) {
  const auto schema = [&](const char* text) { return error(JsonSchemaConstraint{text}); };
  for (const char* keyword : {"not", "if", "dependentRequired", "contains"}) {
    const std::string text =
        json{{"type", "object"}, {"properties", {{"x", {{keyword, json::object()}}}}}}.dump();
    EXPECT_THAT(schema(text.c_str()), HasSubstr(keyword));
    EXPECT_THAT(schema(text.c_str()), HasSubstr("/properties/x"));
  }
  EXPECT_THAT(schema(R"({"type": "array", "uniqueItems": true})"), HasSubstr("uniqueItems"));
  EXPECT_EQ(schema(R"({"type": "array", "uniqueItems": false})"), "accepted");
  EXPECT_THAT(schema(R"({"type": "number", "multipleOf": 0.1})"), HasSubstr("multipleOf"));
  EXPECT_THAT(schema(R"({"$ref": "https://example.org/x.json"})"), HasSubstr("$ref"));
  EXPECT_THAT(schema(R"({"allOf": [{"type": "object"}, {"type": "string"}]})"), HasSubstr("allOf"));
  // Only XGrammar knows of this one, and only once: the second time must not be taken from a cache.
  const char* both = R"({"type": "string", "pattern": "a+", "maxLength": 3})";
  EXPECT_THAT(schema(both), HasSubstr("maxLength"));
  EXPECT_THAT(schema(both), HasSubstr("maxLength"));
  EXPECT_THAT(error(RegexConstraint{"a(?=b)"}), testing::Not("accepted"));
}

TEST_F(GrammarTest, MalformedAndHostileInputIsRefused) {
  EXPECT_THAT(error(JsonSchemaConstraint{"{"}), HasSubstr("not JSON"));
  EXPECT_THAT(error(JsonSchemaConstraint{"3"}), HasSubstr("not an object"));
  EXPECT_THAT(error(JsonSchemaConstraint{R"({"type": "nonsense"})"}), testing::Not("accepted"));
  EXPECT_THAT(error(JsonSchemaConstraint{R"({"type": 3})"}), testing::Not("accepted"));
  EXPECT_THAT(error(JsonSchemaConstraint{R"({"properties": {"x": 3}})"}),
              HasSubstr("/properties/x"));
  EXPECT_THAT(error(JsonSchemaConstraint{R"({"type": "string", "minLength": 4000000000})"}),
              HasSubstr("minLength"));
  EXPECT_THAT(error(JsonSchemaConstraint{R"({"type": "string", "pattern": 5})"}),
              testing::Not("accepted"));
  EXPECT_THAT(error(JsonSchemaConstraint{R"({"enum": []})"}), testing::Not("accepted"));
  EXPECT_THAT(error(JsonSchemaConstraint{R"({"type": "string", "format": 5})"}),
              testing::Not("accepted"));
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += R"({"items":)";
  EXPECT_THAT(error(JsonSchemaConstraint{deep + "{}" + std::string(5000, '}')}), HasSubstr("deep"));
  EXPECT_THAT(error(JsonSchemaConstraint{std::string(300'000, ' ')}), HasSubstr("bytes"));
  EXPECT_THAT(error(RegexConstraint{"a{1,100000}"}), HasSubstr("repetition"));
  EXPECT_THAT(error(RegexConstraint{"(a"}), testing::Not("accepted"));
  EXPECT_THAT(error(EbnfConstraint{"root ::= other"}), testing::Not("accepted"));
  EXPECT_THAT(error(ChoiceConstraint{}), HasSubstr("empty"));
}

TEST_F(GrammarTest, HoldsBehindTheReasoningOnly) {
  const TokenId begin = *tokenizer_.id_of("<think>"), end = *tokenizer_.id_of("<right>");
  const TokenId a = tokenizer_.encode("a", false).front(),
                b = tokenizer_.encode("b", false).front();
  const auto answer = compile(ChoiceConstraint{{"ab"}});
  const auto expect_answer = [&](TokenMatcher& matcher) {
    for (const TokenId token : {a, b}) {
      matcher.fill(mask_);
      EXPECT_TRUE(allowed(token));
      EXPECT_FALSE(allowed(begin));
      EXPECT_FALSE(allowed(end));
      EXPECT_FALSE(matcher.accept(end));
      EXPECT_TRUE(matcher.accept(token));
    }
    matcher.fill(mask_);
    EXPECT_TRUE(allowed(end_));
    EXPECT_FALSE(allowed(a));
  };
  // The prompt has opened it.
  auto matcher = after_reasoning(answer, {begin, end, /*open=*/true})->start({});
  for (const TokenId token : {b, begin, b, end}) {
    matcher->fill(mask_);
    EXPECT_TRUE(allowed(token));
    EXPECT_TRUE(matcher->accept(token));
  }
  expect_answer(*matcher);
  // The output may open it, as its first token.
  const auto either = after_reasoning(answer, {begin, end, /*open=*/false});
  matcher = either->start({});
  matcher->fill(mask_);
  EXPECT_TRUE(allowed(a));
  EXPECT_FALSE(allowed(b));
  EXPECT_TRUE(allowed(begin));
  EXPECT_FALSE(matcher->accept(b));
  EXPECT_TRUE(matcher->accept(begin));
  EXPECT_TRUE(matcher->accept(b));
  EXPECT_TRUE(matcher->accept(end));
  expect_answer(*matcher);
  matcher = either->start({});
  EXPECT_TRUE(matcher->accept(a));
  matcher->fill(mask_);
  EXPECT_TRUE(allowed(b));
  EXPECT_FALSE(allowed(begin));
  // Or nothing can.
  matcher = after_reasoning(answer, {std::nullopt, end, /*open=*/false})->start({});
  matcher->fill(mask_);
  EXPECT_FALSE(allowed(begin));
  EXPECT_FALSE(matcher->accept(begin));
}

TEST_F(GrammarTest, ThreadsShareACompiler) {
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 8; ++i) {
        const std::string word = fmt::format("w{}", (t + i) % 5);
        const auto matcher = compile(ChoiceConstraint{{word}})->start({});
        for (const TokenId token : tokenizer_.encode(word, false)) {
          EXPECT_TRUE(matcher->accept(token));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace vamp
