#include "core/request_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

namespace vamp {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr RequestLimits kLimits{.vocab_size = 512};
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

RequestInput good_request() {
  RequestInput request;
  request.prompt = {0, 17, 511};
  request.sampling.stop_token_ids = {0, 511};
  request.sampling.logit_bias = {{3, -100.f}, {511, 100.f}};
  request.sampling.temperature = 1.5f;
  request.sampling.top_p = 0.9f;
  request.sampling.top_k = 40;
  request.sampling.min_p = 0.1f;
  request.sampling.logprobs = 5;
  return request;
}

std::string refusal(const std::function<void(RequestInput&)>& spoil,
                    const RequestLimits& limits = kLimits) {
  RequestInput request = good_request();
  spoil(request);
  return validate_request(request, limits).value_or("");
}

TEST(ValidateRequest, TakesWhatIsWellFormed) {
  EXPECT_EQ(validate_request(good_request(), kLimits), std::nullopt);
  RequestInput plain;
  plain.prompt = {5};
  EXPECT_EQ(validate_request(plain, kLimits), std::nullopt);
}

TEST(ValidateRequest, NamesTheTokenIdThatTheVocabularyLacks) {
  EXPECT_THAT(
      refusal([](RequestInput& r) {
        r.prompt = {1, 2, 512};
      }),
      AllOf(HasSubstr("prompt"), HasSubstr("token id 512 at position 2"), HasSubstr("512 tokens")));
  EXPECT_THAT(refusal([](RequestInput& r) { r.prompt[0] = -1; }), HasSubstr("token id -1"));
  EXPECT_THAT(refusal([](RequestInput& r) { r.prompt.clear(); }), HasSubstr("empty"));
  EXPECT_THAT(refusal([](RequestInput& r) { r.sampling.stop_token_ids.push_back(600); }),
              AllOf(HasSubstr("stop_token_ids"), HasSubstr("600")));
  EXPECT_THAT(refusal([](RequestInput& r) { r.sampling.logit_bias[0].first = 900; }),
              AllOf(HasSubstr("logit_bias"), HasSubstr("900")));
}

// Without a model only negative ids are known to be wrong.
TEST(ValidateRequest, WithoutAVocabularyAnyIdWillDo) {
  const auto large = [](RequestInput& r) { r.prompt[0] = 1 << 30; };
  EXPECT_EQ(refusal(large, {}), "");
  EXPECT_THAT(refusal([](RequestInput& r) { r.prompt[0] = -5; }, {}), HasSubstr("token id -5"));
}

TEST(ValidateRequest, NamesTheSamplingParameterThatIsOutOfRange) {
  struct Case {
    const char* field;
    std::function<void(SamplingParams&)> spoil;
  };
  const Case cases[] = {
      {"max_tokens", [](auto& p) { p.max_tokens = 0; }},
      {"max_tokens", [](auto& p) { p.max_tokens = -3; }},
      {"min_tokens", [](auto& p) { p.min_tokens = -1; }},
      {"min_tokens", [](auto& p) { p.min_tokens = p.max_tokens + 1; }},
      {"temperature", [](auto& p) { p.temperature = kNaN; }},
      {"temperature", [](auto& p) { p.temperature = kInfinity; }},
      {"temperature", [](auto& p) { p.temperature = -0.1f; }},
      {"top_p", [](auto& p) { p.top_p = 0; }},
      {"top_p", [](auto& p) { p.top_p = 1.01f; }},
      {"top_p", [](auto& p) { p.top_p = kNaN; }},
      {"top_k", [](auto& p) { p.top_k = -1; }},
      {"min_p", [](auto& p) { p.min_p = -0.1f; }},
      {"min_p", [](auto& p) { p.min_p = 1.1f; }},
      {"repetition_penalty", [](auto& p) { p.repetition_penalty = 0; }},
      {"repetition_penalty", [](auto& p) { p.repetition_penalty = kNaN; }},
      {"presence_penalty", [](auto& p) { p.presence_penalty = 2.1f; }},
      {"frequency_penalty", [](auto& p) { p.frequency_penalty = -2.1f; }},
      {"frequency_penalty", [](auto& p) { p.frequency_penalty = kNaN; }},
      {"logprobs", [](auto& p) { p.logprobs = -2; }},
      {"logprobs", [](auto& p) { p.logprobs = 513; }},
      {"logit_bias", [](auto& p) { p.logit_bias[0].second = 100.5f; }},
      {"logit_bias", [](auto& p) { p.logit_bias[0].second = kNaN; }},
  };
  for (const Case& c : cases) {
    EXPECT_THAT(refusal([&](RequestInput& r) { c.spoil(r.sampling); }), HasSubstr(c.field));
  }
  const RequestLimits few{.vocab_size = 512, .max_logprobs = 4};
  EXPECT_THAT(refusal([](RequestInput&) {}, few), HasSubstr("at most 4"));
}

TEST(ValidateRequest, TimesMustBeNumbers) {
  EXPECT_THAT(refusal([](RequestInput& r) { r.arrival = kNaN; }), HasSubstr("arrival"));
  EXPECT_THAT(refusal([](RequestInput& r) { r.arrival = kInfinity; }), HasSubstr("arrival"));
  EXPECT_THAT(refusal([](RequestInput& r) { r.deadline = kNaN; }), HasSubstr("deadline"));
  EXPECT_EQ(refusal([](RequestInput& r) { r.deadline = kInfinity; }), "");
}

}  // namespace
}  // namespace vamp
