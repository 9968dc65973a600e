#include "core/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>

namespace vamp {
namespace {

// ---- The paper's formulas, against values worked out by hand.

TEST(PaperCost, ReuseProbability) {
  EXPECT_DOUBLE_EQ(paper::effective_reuse_probability(0.5, 0.8, 0, 2000), 0.4);
  EXPECT_DOUBLE_EQ(paper::effective_reuse_probability(0.5, 0.8, 2000, 2000), 0.2);
  EXPECT_DOUBLE_EQ(paper::effective_reuse_probability(0.5, 0, 10, 2000), 0);
}

TEST(PaperCost, Eviction) {
  // One block of 544 tokens at 15 us, t_sched 500 + t_queue 1000: 0.4 · 9,660.
  EXPECT_DOUBLE_EQ(paper::eviction_cost(0.4, 544, 15, 1500), 3864);
  // A 16-token block: 0.4 · 1,740.
  EXPECT_DOUBLE_EQ(paper::eviction_cost(0.4, 16, 15, 1500), 696);
}

TEST(PaperCost, RemainingBudgetIsClamped) {
  EXPECT_EQ(paper::clamp_remaining(0, 64), 1);
  EXPECT_EQ(paper::clamp_remaining(63, 64), 63);
  EXPECT_EQ(paper::clamp_remaining(5000, 64), 64);
}

TEST(PaperCost, PublishedMedianExpansion) {
  // 68 shards · 63 steps · 12.3 us = 52.7 ms: 34 groups of two (or 17 of four), no multiple of the
  // increment of four groups, hence the count before rounding.
  EXPECT_NEAR(paper::expansion_cost(68, 512, 12.3, 63) / 1000, 52.7, 0.05);
  EXPECT_NE(68 / 2 % 4, 0);
  // c_eff is 0.63 ms · 10 of 512 experts.
  EXPECT_NEAR(0.63e3 * 10 / 512, 12.3, 0.01);
}

TEST(PaperCost, ExpansionIsCappedAtTheExpertsOfALayer) {
  EXPECT_DOUBLE_EQ(paper::expansion_cost(600, 512, 12.3, 64), 512 * 12.3 * 64);
}

TEST(PaperCost, GroupsWithAndWithoutRounding) {
  const double group = 6.0 * kMiB, block = 544 * 12288.0;  // Qwen3-Next, TP2
  EXPECT_EQ(paper::groups_for_bytes(block, group), 2);
  EXPECT_EQ(paper::round_up(paper::groups_for_bytes(block, group), 4), 4);
  EXPECT_EQ(paper::groups_for_bytes(32 * block, group), 34);
  EXPECT_EQ(paper::round_up(34, 4), 36);
  EXPECT_EQ(paper::round_up(36, 4), 36);
}

TEST(PaperCost, Preemption) {
  const Micros single = paper::single_preemption_cost(500, 1000, 200, 15);
  EXPECT_DOUBLE_EQ(single, 4500);
  EXPECT_DOUBLE_EQ(paper::preemption_cost(single, 3), 13500);
}

// ---- Prices.

TEST(Price, Prefill) {
  const price::PrefillCost cost{1000, 10, 0.001};
  EXPECT_DOUBLE_EQ(price::prefill(cost, 0, 0), 0);
  // 1,000 + 10 · 2,000 + 0.001 · 2,000 · (8,000 + 1,000)
  EXPECT_DOUBLE_EQ(price::prefill(cost, 8000, 2000), 1000 + 20000 + 18000);
}

TEST(Price, Copy) {
  EXPECT_DOUBLE_EQ(price::copy(55e6, 55e3, 0), 1000);  // 55 MB at 55 GB/s
  EXPECT_DOUBLE_EQ(price::copy(55e6, 55e3, 0.5), 2000);
  EXPECT_DOUBLE_EQ(price::copy(55e6, 55e3, 1.0), 20000);  // never less than 5% of the link
}

TEST(Price, Activation) {
  // 512 experts, top-10: a batch of 16 touches 27%, of 32 47%, of 64 72%.
  const double q = 10.0 / 512;
  EXPECT_NEAR(price::activation_probability(q, 16), 0.27, 0.005);
  EXPECT_NEAR(price::activation_probability(q, 32), 0.47, 0.005);
  EXPECT_NEAR(price::activation_probability(q, 64), 0.72, 0.005);
  EXPECT_EQ(price::activation_probability(1.0, 1), 1);
  EXPECT_EQ(price::activation_probability(0.5, 0), 0);
}

TEST(Price, StagingTakesTheFasterWay) {
  // 1 GB activated of 2 GB at 50 GB/s: 20 ms against 40 - 10 = 30 ms.
  EXPECT_DOUBLE_EQ(price::staging_delay(1e9, 2e9, 50e3, 0, 10e3), 20e3);
  // A step of 35 ms hides all but 5 ms of the whole region; one of 50 ms hides it all.
  EXPECT_DOUBLE_EQ(price::staging_delay(1e9, 2e9, 50e3, 0, 35e3), 5e3);
  EXPECT_DOUBLE_EQ(price::staging_delay(1e9, 2e9, 50e3, 0, 50e3), 0);
  EXPECT_DOUBLE_EQ(price::staging_delay(1e9, 2e9, 50e3, 8e3, 0), 12e3);
}

TEST(Price, Externality) {
  EXPECT_DOUBLE_EQ(price::externality(100, 0, 0), 100);
  EXPECT_DOUBLE_EQ(price::externality(100, 4, 0.5), 1000);
  EXPECT_NEAR(price::externality(100, 4, 0.99), 5000, 1e-6);  // load counts up to 0.9
}

TEST(Price, DropAgainstDemote) {
  // 33k tokens of Qwen3-Next under TP2: 0.4 GB a GPU, 8 ms back; 0.4 s to prefill again.
  const double bytes = 33e3 * 12288;
  EXPECT_DOUBLE_EQ(price::drop(0.5, 400e3), 200e3);
  const double demote = price::demote(bytes, 55e3, 51e3, 0, 0.5, 0, 10);
  EXPECT_NEAR(demote, 0.5 * bytes / 51e3, 1e-6);
  EXPECT_LT(demote, 5e3);
  // Running copies slow ten requests by 6%: both ways.
  EXPECT_NEAR(price::demote(bytes, 50e3, 50e3, 0.06, 1, 0, 10), bytes / 50e3 * (0.6 + 1 + 0.6),
              1e-6);
  // A copy that exists costs only the way back.
  EXPECT_NEAR(price::drop_clean(bytes, 50e3, 0.06, 1, 0, 10), bytes / 50e3 * 1.6, 1e-6);
  // Staging on most of the link: the rest of it is slower, and the copy delays the experts.
  EXPECT_NEAR(price::drop_clean(1e6, 50e3, 0, 1, 0.75, 10), 80 + 20 * 10, 1e-6);
}

TEST(Price, GiveUp) {
  // 2 ms a step, 100 steps a second, for 30 s, 5 requests; 8 handles of 74 us, there and back.
  // 2 ms more in each of 3,000 steps, half of the time taken by prefill.
  EXPECT_DOUBLE_EQ(price::give_up(price::externality(6e6, 5, 0.5), 5, 8, 74), 6e6 * 12 + 1184 * 5);
}

TEST(Price, Preempt) {
  EXPECT_DOUBLE_EQ(price::preempt_recompute(1e6, 0.25, 4e6), 4e6);
  EXPECT_DOUBLE_EQ(price::preempt_swap(1e6, 50e6, 50e3, 25e3, 0.1, 0, 10), 1e6 + 1e3 + 2e3 + 3e3);
}

TEST(Price, Wait) {
  EXPECT_DOUBLE_EQ(price::wait(1e9, 1e3, 3), 4e6);
  EXPECT_DOUBLE_EQ(price::wait(1e9, 0, 0), 30e6);
  EXPECT_DOUBLE_EQ(price::wait(1e12, 1e3, 0), 30e6);
}

TEST(Price, EngineTime) {
  EXPECT_DOUBLE_EQ(price::engine_time_per_turn(400e3, 240, 8, 10e3), 400e3 + 300e3);
  EXPECT_DOUBLE_EQ(price::engine_time_per_turn(0, 100, 0, 10e3), 1e6);
}

}  // namespace
}  // namespace vamp
