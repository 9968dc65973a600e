// The device's sampler against the CPU's. Without a GPU every test says so and is skipped.
#include "kernels/cuda/sampler.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <string>

#include "kernels/cuda/device_buffer.h"
#include "kernels/test_support.h"

namespace vamp::cuda {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class DeviceSampler : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no GPU";
  }
  std::vector<float> random_logits(int rows, int vocab, double scale) {
    std::vector<float> logits(static_cast<size_t>(rows) * static_cast<size_t>(vocab));
    for (float& x : logits) x = static_cast<float>(random_.normal() * scale);
    return logits;
  }
  std::vector<Sample> on_cpu(std::vector<float> logits, int vocab,
                             const std::vector<SampleParams>& params) {
    std::vector<Sample> out(params.size());
    cpu_->sample(logits.data(), static_cast<int>(params.size()), vocab, params, out);
    return out;
  }
  std::vector<Sample> on_device(const std::vector<float>& logits, int vocab,
                                const std::vector<SampleParams>& params,
                                const std::vector<const uint32_t*>& masks = {}) {
    const DeviceBuffer<float> device(logits);
    Sampler sampler(static_cast<int>(params.size()), vocab);
    std::vector<Sample> out(params.size());
    for (int repeat = 0; repeat < 2; ++repeat) {
      sampler.launch(device.get(), params, masks, nullptr);
      sampler.results(out);
    }
    const std::vector<float> after = device.to_host();
    EXPECT_EQ(std::memcmp(after.data(), logits.data(), logits.size() * sizeof(float)), 0)
        << "logits are left alone";
    return out;
  }
  std::unique_ptr<Ops> cpu_ = make_cpu_ops({.threads = 0, .activation = DType::kF32, .isa = {}});
  Random random_{11};
};

TEST_F(DeviceSampler, GreedyTakesTheLowestOfTheBest) {
  for (const int vocab : {1, 5, 31, 1000, 4099, 151936}) {
    std::vector<float> logits = random_logits(4, vocab, 1.0);
    for (int r = 0; r < 4; ++r) {
      const size_t row = static_cast<size_t>(r) * static_cast<size_t>(vocab);
      for (size_t i = random_.below(static_cast<uint64_t>(vocab)); i < static_cast<size_t>(vocab);
           i += 7)
        logits[row + i] = 9;
    }
    const std::vector<SampleParams> params(4);
    const auto want = on_cpu(logits, vocab, params), got = on_device(logits, vocab, params);
    for (size_t r = 0; r < 4; ++r) EXPECT_EQ(got[r].token, want[r].token) << vocab;
  }
}

TEST_F(DeviceSampler, NaNAndNothingFiniteAreInvalid) {
  const int vocab = 5000;
  std::vector<float> logits = random_logits(5, vocab, 1.0);
  logits[4999] = NAN;                                          // row 0
  logits[5000] = kInfinity;                                    // row 1
  std::fill_n(logits.begin() + 10000, vocab, -kInfinity);      // row 2
  std::fill_n(logits.begin() + 15000, vocab - 1, -kInfinity);  // row 3: one token left
  for (const float temperature : {0.0f, 1.0f}) {
    const std::vector<SampleParams> params(5, SampleParams{.temperature = temperature});
    const auto got = on_device(logits, vocab, params);
    EXPECT_TRUE(got[0].invalid && got[1].invalid && got[2].invalid);
    EXPECT_FALSE(got[3].invalid || got[4].invalid);
    EXPECT_EQ(got[3].token, vocab - 1);
  }
}

// Every combination of steps, many draws each. Draws may differ only where the random number falls
// on a border between two tokens, some 1e-7 of them.
TEST_F(DeviceSampler, DrawsAsTheCpu) {
  const int vocab = 3001, rows = 64;
  const std::vector<TokenId> prompt = {1, 2, 2, 77, 2999, 5000, -1}, output = {2, 3, 3, 3, 78};
  const std::vector<std::pair<TokenId, float>> bias = {
      {5, 3.0f}, {6, -kInfinity}, {3, 1.5f}, {9000, 1.0f}};
  int draws = 0, different = 0;
  for (int variant = 0; variant < 64; ++variant) {
    std::vector<float> logits = random_logits(rows, vocab, variant % 2 ? 0.5 : 3.0);
    for (float& x : logits) {
      if (variant % 3 == 0) x = std::round(x * 2) / 2;  // many ties
    }
    std::vector<SampleParams> params;
    for (int r = 0; r < rows; ++r) {
      SampleParams p;
      p.temperature = r % 8 == 7 ? 0.0f : 0.3f + 0.2f * static_cast<float>(r % 5);
      if (variant & 1) p.top_k = 1 + static_cast<int>(random_.below(r % 2 ? 50 : 4000));
      if (variant & 2) p.top_p = static_cast<float>(random_.uniform());
      if (variant & 4) p.min_p = static_cast<float>(random_.uniform() * 0.3);
      if (variant & 8) p.logit_bias = bias;
      if (variant & 16) {
        p.repetition_penalty = 1.3f;
        p.presence_penalty = 0.4f;
        p.frequency_penalty = 0.2f;
      }
      p.prompt = prompt;
      p.output = output;
      p.seed = random_.next();
      p.counter = random_.below(1000);
      if (variant & 32) p.logprobs = static_cast<int>(random_.below(21));
      params.push_back(p);
    }
    const auto want = on_cpu(logits, vocab, params), got = on_device(logits, vocab, params);
    for (size_t r = 0; r < params.size(); ++r) {
      ++draws;
      different += got[r].token != want[r].token;
      EXPECT_FALSE(got[r].invalid);
      if (got[r].token != want[r].token) {
        EXPECT_GT(params[r].temperature, 0) << "greedy tokens never differ";
      } else if (params[r].logprobs >= 0) {
        EXPECT_NEAR(got[r].logprob, want[r].logprob, 1e-5 * (1 + std::abs(want[r].logprob)));
      }
      ASSERT_EQ(got[r].top_logprobs.size(), want[r].top_logprobs.size());
      for (size_t i = 0; i < got[r].top_logprobs.size(); ++i) {
        EXPECT_EQ(got[r].top_logprobs[i].first, want[r].top_logprobs[i].first);
        EXPECT_NEAR(got[r].top_logprobs[i].second, want[r].top_logprobs[i].second, 2e-5);
      }
    }
  }
  EXPECT_LE(different, 2) << "of " << draws;
}

TEST_F(DeviceSampler, DrawsOfALargeVocabulary) {
  const int vocab = 151936, rows = 16;
  const std::vector<float> logits = random_logits(rows, vocab, 2.0);
  for (const bool filtered : {false, true}) {
    std::vector<SampleParams> params;
    for (int r = 0; r < rows; ++r) {
      SampleParams p{.temperature = 0.8f, .seed = random_.next(), .counter = 3};
      if (filtered) p.top_p = 0.9f;
      if (filtered && r % 2) p.top_k = 40;
      params.push_back(p);
    }
    const auto want = on_cpu(logits, vocab, params), got = on_device(logits, vocab, params);
    for (size_t r = 0; r < rows; ++r) EXPECT_EQ(got[r].token, want[r].token) << r;
  }
}

TEST_F(DeviceSampler, ARowDoesNotDependOnItsPlace) {
  const int vocab = 9000;
  const std::vector<float> one = random_logits(1, vocab, 1.0);
  std::vector<float> logits = random_logits(5, vocab, 1.0);
  std::vector<SampleParams> params(5, SampleParams{.temperature = 1.0f, .top_p = 0.8f, .seed = 1});
  std::vector<TokenId> tokens;
  for (size_t place = 0; place < 5; ++place) {
    std::vector<float> batch = logits;
    std::copy(one.begin(), one.end(), batch.begin() + static_cast<ptrdiff_t>(place * 9000));
    params[place].seed = 99;
    tokens.push_back(on_device(batch, vocab, params)[place].token);
    params[place].seed = 1;
  }
  EXPECT_EQ(tokens, std::vector<TokenId>(5, tokens[0]));
}

TEST_F(DeviceSampler, MasksForbidTokens) {
  const int vocab = 1003, rows = 6;
  const std::vector<float> logits = random_logits(rows, vocab, 1.0);
  std::vector<uint32_t> odd((vocab + 31) / 32, 0xAAAAAAAAu), none(odd.size(), 0),
      one(odd.size(), 0);
  one[500 / 32] = 1u << (500 % 32);
  std::vector<SampleParams> params(rows);
  for (size_t r = 0; r < rows; ++r) {
    params[r].temperature = r % 2 ? 1.0f : 0.0f;
    params[r].seed = r;
  }
  const auto got =
      on_device(logits, vocab, params,
                {odd.data(), odd.data(), one.data(), one.data(), none.data(), nullptr});
  EXPECT_EQ(got[0].token % 2, 1);
  EXPECT_EQ(got[1].token % 2, 1);
  EXPECT_EQ(got[2].token, 500);
  EXPECT_EQ(got[3].token, 500);
  EXPECT_TRUE(got[4].invalid);
  std::vector<float> masked = logits;
  for (int t = 0; t < vocab; t += 2) masked[static_cast<size_t>(t)] = -kInfinity;
  EXPECT_EQ(got[0].token, on_cpu(masked, vocab, params)[0].token);
  EXPECT_EQ(got[5].token, on_cpu(logits, vocab, params)[5].token);
}

}  // namespace
}  // namespace vamp::cuda
