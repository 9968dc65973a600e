#include "kernels/cpu/sampler.h"

#include <algorithm>
#include <limits>
#include <map>

#include "kernels/test_support.h"

namespace vamp::test {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class SamplerTest : public KernelsTest {
 protected:
  Sample sample(std::vector<float> logits, const SampleParams& params) {
    Sample out;
    GetParam().make()->sample(logits.data(), 1, static_cast<int>(logits.size()), {&params, 1},
                              {&out, 1});
    return out;
  }
  // How often each token comes in `draws` draws.
  std::map<TokenId, int> histogram(const std::vector<float>& logits, SampleParams params,
                                   int draws = 1500) {
    const auto ops = GetParam().make();
    std::map<TokenId, int> counts;
    for (int i = 0; i < draws; ++i) {
      std::vector<float> row = logits;
      params.counter = static_cast<uint64_t>(i);
      Sample out;
      ops->sample(row.data(), 1, static_cast<int>(row.size()), {&params, 1}, {&out, 1});
      ++counts[out.token];
    }
    return counts;
  }
};

TEST_P(SamplerTest, GreedyTakesTheLowestOfTheBest) {
  for (const size_t vocab : {1u, 5u, 16u, 1000u, 1537u}) {
    std::vector<float> logits(vocab);
    for (float& x : logits) x = static_cast<float>(random_.normal());
    const size_t best = random_.below(vocab);
    logits[best] = 9;
    for (size_t i = best + 1; i < vocab; i += 3) logits[i] = 9;
    EXPECT_EQ(sample(logits, {}).token, static_cast<TokenId>(best));
  }
}

TEST_P(SamplerTest, OnlyWhatTheMaskAllows) {
  for (const size_t vocab : {5u, 32u, 1000u}) {
    std::vector<float> logits(vocab);
    for (float& x : logits) x = static_cast<float>(random_.normal());
    std::vector<uint32_t> mask((vocab + 31) / 32, 0);
    SampleParams params;
    params.allowed = mask;
    EXPECT_TRUE(sample(logits, params).invalid);  // nothing may come
    const size_t low = vocab / 3, high = vocab - 1;
    for (const size_t token : {low, high}) mask[token / 32] |= 1u << (token % 32);
    EXPECT_EQ(sample(logits, params).token,
              static_cast<TokenId>(logits[high] > logits[low] ? high : low));
    params.temperature = 1.5f;
    for (const auto& [token, count] : histogram(logits, params, 200)) {
      EXPECT_TRUE(token == static_cast<TokenId>(low) || token == static_cast<TokenId>(high));
    }
    params.temperature = 0;
    params.logprobs = 0;  // of the unmodified logits, whatever the mask
    const Sample masked = sample(logits, params);
    params.allowed = {};
    const std::vector<std::pair<TokenId, float>> bias = {{masked.token, 1e6f}};
    params.logit_bias = bias;
    EXPECT_EQ(sample(logits, params).logprob, masked.logprob);
  }
}

TEST_P(SamplerTest, NaNAndNothingFiniteAreInvalid) {
  std::vector<float> logits(100, 1.0f);
  EXPECT_FALSE(sample(logits, {}).invalid);
  for (const size_t where : {0u, 50u, 99u}) {
    std::vector<float> bad = logits;
    bad[where] = NAN;
    EXPECT_TRUE(sample(bad, {}).invalid);
    bad[where] = -kInfinity;
    EXPECT_FALSE(sample(bad, {}).invalid);
    EXPECT_NE(sample(bad, {}).token, static_cast<TokenId>(where));
    bad[where] = kInfinity;
    EXPECT_TRUE(sample(bad, {}).invalid);
  }
  EXPECT_TRUE(sample(std::vector<float>(40, -kInfinity), {}).invalid);
}

TEST_P(SamplerTest, ProbabilitiesFollowTheTemperature) {
  const std::vector<float> logits = {0, 1, 2, -kInfinity};
  const auto counts = histogram(logits, {.temperature = 2.0f, .seed = 5});
  const double a = 1, b = std::exp(0.5), c = std::exp(1.0);
  EXPECT_NEAR(counts.at(0), 1500 * a / (a + b + c), 80);
  EXPECT_NEAR(counts.at(1), 1500 * b / (a + b + c), 80);
  EXPECT_NEAR(counts.at(2), 1500 * c / (a + b + c), 80);
  EXPECT_EQ(counts.count(3), 0u);
}

TEST_P(SamplerTest, FiltersKeepWhatTheyShould) {
  // Probabilities 0.4, 0.3, 0.2, 0.1 in a mixed order.
  const std::vector<float> logits = {std::log(0.2f), std::log(0.4f), std::log(0.1f),
                                     std::log(0.3f)};
  const auto kept = [&](SampleParams params) {
    params.temperature = 1;
    std::vector<TokenId> ids;
    for (const auto& [id, count] : histogram(logits, params, 400)) ids.push_back(id);
    return ids;
  };
  EXPECT_EQ(kept({.top_k = 1}), (std::vector<TokenId>{1}));
  EXPECT_EQ(kept({.top_k = 3}), (std::vector<TokenId>{0, 1, 3}));
  EXPECT_EQ(kept({.top_p = 0.6f}), (std::vector<TokenId>{1, 3}));
  EXPECT_EQ(kept({.top_p = 0.75f}), (std::vector<TokenId>{0, 1, 3}));
  EXPECT_EQ(kept({.top_p = 0.01f}), (std::vector<TokenId>{1}));
  EXPECT_EQ(kept({.min_p = 0.45f}), (std::vector<TokenId>{0, 1, 3}));
  // Top-p counts what top-k left: 0.4 of 0.7 is not yet 0.6.
  EXPECT_EQ(kept({.top_p = 0.6f, .top_k = 2}), (std::vector<TokenId>{1, 3}));
  EXPECT_EQ(kept({.top_p = 0.55f, .top_k = 2}), (std::vector<TokenId>{1}));
}

TEST_P(SamplerTest, TopPOverManyTokens) {
  // 2,000 equal tokens: half of them are kept, the lower ids.
  const std::vector<float> logits(2000, 0.0f);
  const auto counts = histogram(logits, {.temperature = 1, .top_p = 0.4999f}, 300);
  EXPECT_LE(counts.rbegin()->first, 999);
  EXPECT_GT(counts.rbegin()->first, 800);
}

TEST_P(SamplerTest, PenaltiesAndBias) {
  const std::vector<TokenId> prompt = {0}, output = {1, 1, 2};
  const std::vector<float> logits = {2, 2, -1, 1};
  // Repetition: 2/1.5, 2/1.5, -1.5, 1.
  SampleParams params{.repetition_penalty = 2.5f, .prompt = prompt, .output = output};
  EXPECT_EQ(sample(logits, params).token, 3);
  params = {.presence_penalty = 0.5f, .output = output};
  EXPECT_EQ(sample(logits, params).token, 0);
  params = {.frequency_penalty = 0.6f, .output = output};
  EXPECT_EQ(sample({0, 2, 0, 1}, params).token, 3);
  const std::vector<std::pair<TokenId, float>> bias = {{0, -kInfinity}, {2, 10.0f}};
  params = {.logit_bias = bias};
  EXPECT_EQ(sample(logits, params).token, 2);
}

TEST_P(SamplerTest, LogprobsAreOfTheUnmodifiedLogits) {
  const std::vector<float> logits = {0, 3, 1, 2};
  const std::vector<std::pair<TokenId, float>> bias = {{1, -kInfinity}};
  const Sample s = sample(logits, {.temperature = 0, .logit_bias = bias, .logprobs = 2});
  const double log_sum = std::log(1 + std::exp(1.0) + std::exp(2.0) + std::exp(3.0));
  EXPECT_EQ(s.token, 3);
  EXPECT_NEAR(s.logprob, 2 - log_sum, 1e-5);
  ASSERT_EQ(s.top_logprobs.size(), 2u);
  EXPECT_EQ(s.top_logprobs[0].first, 1);
  EXPECT_NEAR(s.top_logprobs[0].second, 3 - log_sum, 1e-5);
  EXPECT_EQ(s.top_logprobs[1].first, 3);
}

// A request's draws depend on its seed and counter, not on the rows beside it or the threads.
TEST_P(SamplerTest, RowsDoNotDependOnTheirBatch) {
  const int rows = 9, vocab = 5000;
  std::vector<float> logits(static_cast<size_t>(rows * vocab));
  for (float& x : logits) x = static_cast<float>(random_.normal());
  std::vector<SampleParams> params;
  for (uint64_t r = 0; r < 9; ++r) {
    params.push_back({.temperature = 1.0f,
                      .top_p = r % 2 ? 0.9f : 1.0f,
                      .seed = 40 + r / 2,
                      .counter = r % 2,
                      .logprobs = 1});
  }
  std::vector<Sample> batch(9);
  std::vector<float> copy = logits;
  GetParam().make(3)->sample(copy.data(), rows, vocab, params, batch);
  const auto single = GetParam().make(1);
  for (size_t r = 0; r < 9; ++r) {
    Sample alone;
    copy = logits;
    single->sample(copy.data() + r * 5000, 1, vocab, {&params[r], 1}, {&alone, 1});
    EXPECT_EQ(alone.token, batch[r].token);
    EXPECT_EQ(alone.logprob, batch[r].logprob);
  }
}

TEST(SamplerDrawTest, DrawsAreUniformAndDiffer) {
  double sum = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    for (uint64_t counter = 0; counter < 50; ++counter) {
      const double u = cpu::draw(seed, counter);
      ASSERT_GE(u, 0.0);
      ASSERT_LT(u, 1.0);
      sum += u;
    }
  }
  EXPECT_NEAR(sum / 2500, 0.5, 0.02);
  EXPECT_NE(cpu::draw(1, 0), cpu::draw(1, 1));
  EXPECT_NE(cpu::draw(1, 0), cpu::draw(2, 0));
}

VAMP_INSTANTIATE_KERNELS_TEST(SamplerTest);

}  // namespace
}  // namespace vamp::test
