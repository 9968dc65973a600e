#include "kernels/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace vamp {
namespace {

struct Golden {
  int index;
  double inv_freq;
};

// Values of transformers 5.24, ROPE_INIT_FUNCTIONS.
void expect_golden(const RopeFrequencies& rope, double attention_factor,
                   const std::vector<Golden>& golden) {
  EXPECT_NEAR(rope.attention_factor, attention_factor, 1e-6);
  ASSERT_EQ(rope.inv_freq.size(), static_cast<size_t>(rope.rotary_dim / 2));
  for (const Golden& g : golden) {
    const double got = static_cast<double>(rope.inv_freq[static_cast<size_t>(g.index)]);
    EXPECT_NEAR(got, g.inv_freq, 1e-6 * g.inv_freq) << g.index;
  }
}

TEST(RopeTest, DefaultAndPartial) {
  RopeConfig rope;
  rope.theta = 1e7;
  rope.partial_rotary_factor = 0.25;
  const RopeFrequencies f = make_rope_frequencies(rope, 256);
  EXPECT_EQ(f.rotary_dim, 64);
  expect_golden(f, 1.0, {{0, 1.0}, {16, std::pow(1e7, -0.5)}, {31, std::pow(1e7, -62.0 / 64)}});
}

TEST(RopeTest, Linear) {
  RopeConfig rope;
  rope.scaling = RopeConfig::Scaling::kLinear;
  rope.factor = 4;
  expect_golden(make_rope_frequencies(rope, 64), 1.0,
                {{0, 0.25}, {1, 0.18747355}, {13, 0.00592843397}, {31, 3.33380376e-05}});
}

TEST(RopeTest, Llama3) {
  RopeConfig rope;
  rope.scaling = RopeConfig::Scaling::kLlama3;
  rope.theta = 500000;
  rope.factor = 8;
  rope.low_freq_factor = 1;
  rope.high_freq_factor = 4;
  rope.original_max_position = 8192;
  expect_golden(make_rope_frequencies(rope, 64), 1.0,
                {{0, 1.0},
                 {1, 0.663601279},
                 {8, 0.0376060307},
                 {13, 0.00483942125},
                 {16, 0.000524846022},
                 {21, 2.2748929e-05},
                 {31, 3.7673226e-07}});
}

TEST(RopeTest, YarnWithDefaultAttentionFactor) {
  RopeConfig rope;
  rope.scaling = RopeConfig::Scaling::kYarn;
  rope.theta = 1e6;
  rope.factor = 4;
  rope.original_max_position = 32768;
  expect_golden(make_rope_frequencies(rope, 64), 1.138629436111989,
                {{0, 1.0},
                 {1, 0.649381638},
                 {13, 0.0030431177},
                 {16, 0.000583333371},
                 {21, 2.88695483e-05},
                 {31, 3.84981632e-07}});
}

TEST(RopeTest, YarnWithMscales) {
  RopeConfig rope;
  rope.scaling = RopeConfig::Scaling::kYarn;
  rope.factor = 40;
  rope.original_max_position = 4096;
  rope.mscale = 0.707;
  rope.mscale_all_dim = 1.0;
  expect_golden(make_rope_frequencies(rope, 128), 0.9210423553163399,
                {{16, 0.100000001},
                 {29, 0.010202013},
                 {32, 0.00550000044},
                 {37, 0.00176525733},
                 {63, 2.88695469e-06}});
}

TEST(RopeTest, YarnWithoutTruncation) {
  RopeConfig rope;
  rope.scaling = RopeConfig::Scaling::kYarn;
  rope.theta = 150000;
  rope.factor = 32;
  rope.original_max_position = 4096;
  rope.truncate = false;
  expect_golden(
      make_rope_frequencies(rope, 64), 1.3465735902799727,
      {{8, 0.0508132726}, {13, 0.00386035908}, {16, 0.000456483918}, {21, 1.25325696e-05}});
  rope.attention_factor = 1.5;
  EXPECT_EQ(make_rope_frequencies(rope, 64).attention_factor, 1.5f);
}

}  // namespace
}  // namespace vamp
