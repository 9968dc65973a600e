#include "core/value_aware_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "core/make_policy.h"
#include "core/static_policy.h"

namespace vamp {
namespace {

// Qwen3-Next-80B under TP2: groups of two 3-MiB shards, increments of four groups (24 MiB, 128
// blocks of 16 tokens), 12,288 bytes a token.
ReclaimInputs situation() {
  ReclaimInputs in;
  in.step = 10000;
  in.gap_blocks = 34;  // 544 tokens
  in.needed_blocks = 34;
  in.block_tokens = 16;
  in.cached_blocks = 20000;
  in.total_blocks = 42000;
  in.evictable.push_back(
      {.blocks = 34, .tokens = 544, .prefix_tokens = 8000, .last_used_step = 10000});
  in.boundary = {.groups_out = 0,
                 .max_groups_out = 40,
                 .increment_groups = 4,
                 .shards_per_group = 2,
                 .experts_per_layer = 512,
                 .group_bytes = 6 * kMiB,
                 .block_bytes = 16 * 12288,
                 .blocks_gained = {}};
  for (int k = 1; k <= 10; ++k) in.boundary.blocks_gained.push_back(128 * k);
  in.running = 8;
  in.min_remaining_tokens = 200;
  in.hit_rate = 0.9;
  return in;
}

PreemptionCandidate victim(int partial) {
  return {.id = 7,
          .context_tokens = 30000,
          .partial_tokens = partial,
          .uncached_blocks = partial > 0,
          .total_blocks = 1876};
}

double cost_of(const ReclaimDecision& decision, ActionKind kind) {
  for (const ActionCost& cost : decision.costs)
    if (cost.kind == kind) return cost.cost;
  return std::nan("");
}

// A situation and the action that must win it.
struct Row {
  const char* what;
  std::function<void(ReclaimInputs&)> change;
  ActionKind wins;
  double costs;  // of the winner, worked out by hand; negative: not checked
};

class ValueAwareTable : public testing::TestWithParam<Row> {};

TEST_P(ValueAwareTable, CheapestFeasibleActionWins) {
  ReclaimInputs in = situation();
  GetParam().change(in);
  ValueAwarePolicy policy;
  const ReclaimDecision decision = policy.choose(in);
  EXPECT_EQ(action_name(decision.kind), std::string(action_name(GetParam().wins))) << decision.note;
  if (GetParam().costs >= 0) {
    EXPECT_NEAR(cost_of(decision, decision.kind), GetParam().costs, 0.01);
  }
  EXPECT_EQ(decision.costs.size(), 4u);  // every action's cost is logged
}

INSTANTIATE_TEST_SUITE_P(
    Situations, ValueAwareTable,
    testing::Values(
        // C_c = 0.45 · (544 · 15 + 1,500) = 4,347; C_e = 2 groups · 2 shards · 12.3 · 64 = 3,148.8.
        Row{"a warm cache is worth more than experts", [](auto&) {}, ActionKind::kGiveUpExperts,
            3148.8},
        // C_c = 0.3 · 9,660.
        Row{"a cooler cache is not", [](auto& in) { in.hit_rate = 0.6; }, ActionKind::kDrop, 2898},
        // C_c = 0.45 / 2 · 9,660: the LRU front was last used tau steps ago.
        Row{"age halves an eviction's cost",
            [](auto& in) { in.evictable[0].last_used_step = 8000; }, ActionKind::kDrop, 2173.5},
        // w = 5: C_e = 4 · 12.3 · 5.
        Row{"experts are cheap when a request ends soon",
            [](auto& in) { in.min_remaining_tokens = 5, in.hit_rate = 0.6; },
            ActionKind::kGiveUpExperts, 246},
        Row{"at the limit only eviction and preemption remain",
            [](auto& in) { in.boundary.groups_out = 40, in.boundary.blocks_gained.clear(); },
            ActionKind::kDrop, 4347},
        Row{"nor can it move while it moves", [](auto& in) { in.boundary.can_move = false; },
            ActionKind::kDrop, 4347},
        // C_p1 = 500 + 1,000 + 10 · 15, one decision block.
        Row{"a victim with a short last block is cheapest",
            [](auto& in) { in.victims = {victim(10)}; }, ActionKind::kPreemptRecompute, 1650},
        // 340 blocks are 10 decision blocks: C_p = 16,500; 63.75 MiB are 11 groups: 11 · 2 · 12.3.
        Row{"a preemption frees one block only, so a larger gap makes it dear",
            [](auto& in) {
              in.victims = {victim(10)}, in.gap_blocks = 340, in.min_remaining_tokens = 1;
            },
            ActionKind::kGiveUpExperts, 11 * 2 * 12.3},
        Row{"a full last block frees nothing", [](auto& in) { in.victims = {victim(0)}; },
            ActionKind::kGiveUpExperts, 3148.8},
        // Gap 306 blocks = 9 decision blocks, 4,896 tokens; one whole increment covers 128 of them.
        // C_b = C_e(8 groups, 256 blocks) + C_c(the other 50 blocks) = 16 · 12.3 · 64 + 0.45 · (800
        // · 15
        // + 1,500), below C_c = 0.45 · (4,896 · 15 + 1,500) = 33,723; C_e needs 10 groups: 15,744.
        Row{"few groups left: part of each",
            [](auto& in) {
              in.gap_blocks = 306, in.boundary.groups_out = 32,
              in.boundary.blocks_gained = {128, 256};
            },
            ActionKind::kGiveUpAndDrop, 16 * 12.3 * 64 + 0.45 * (800 * 15 + 1500)},
        Row{"nothing cached, no group left: preempt, even a full last block",
            [](auto& in) {
              in.cached_blocks = 0, in.evictable.clear(), in.boundary.blocks_gained.clear();
              in.boundary.groups_out = 40, in.victims = {victim(0)};
            },
            ActionKind::kPreemptRecompute, -1},
        Row{"nothing at all: a waiting request waits",
            [](auto& in) {
              in.cached_blocks = 0, in.evictable.clear(), in.boundary.blocks_gained.clear();
              in.boundary.groups_out = 40, in.admission = true;
            },
            ActionKind::kWait, -1}),
    [](const auto& row) {
      std::string name = row.param.what;
      std::replace_if(
          name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
      return name;
    });

TEST(ValueAware, SixteenTokenBlocksAlwaysEvictWithoutQuantisation) {
  ValueAwareConfig raw;
  raw.decision_block_tokens = 0;
  for (const double hit_rate : {0.1, 0.5, 0.9, 1.0}) {
    for (const uint64_t age : {0u, 100u, 5000u}) {
      ReclaimInputs in = situation();
      in.gap_blocks = in.needed_blocks = 1;
      in.hit_rate = hit_rate;
      in.evictable[0].last_used_step = in.step - age;
      EXPECT_EQ(ValueAwarePolicy(raw).choose(in).kind, ActionKind::kDrop) << hit_rate << " " << age;
    }
  }
  // With it, one missing block is priced as 544 tokens and as much is reclaimed.
  ReclaimInputs in = situation();
  in.gap_blocks = in.needed_blocks = 1;
  EXPECT_EQ(ValueAwarePolicy().choose(in).kind, ActionKind::kGiveUpExperts);
  in.hit_rate = 0.3;
  EXPECT_EQ(ValueAwarePolicy().choose(in).drop_blocks, 34);
}

TEST(ValueAware, OnceTheHitRateHasCollapsedItEvictsForEver) {
  ReclaimInputs in = situation();
  in.hit_rate = 0.002;  // the paper's baseline past the cliff: 0.19%
  ValueAwarePolicy policy;
  for (int i = 0; i < 1000; ++i) {
    in.step += 10;
    in.evictable[0].last_used_step = in.step;
    in.min_remaining_tokens = 1 + i % 500;
    ASSERT_EQ(policy.choose(in).kind, ActionKind::kDrop);
  }
}

TEST(ValueAware, RoundedGroupsAreChargedOnRequest) {
  ValueAwareConfig rounded;
  rounded.unrounded_groups = false;
  const ReclaimDecision decision = ValueAwarePolicy(rounded).choose(situation());
  EXPECT_DOUBLE_EQ(cost_of(decision, ActionKind::kGiveUpExperts), 8 * 12.3 * 64);
  EXPECT_EQ(decision.kind, ActionKind::kDrop);
  EXPECT_NE(decision.note.find("rounded 6298"), std::string::npos) << decision.note;
  EXPECT_NE(decision.note.find("unrounded 3149"), std::string::npos) << decision.note;
}

TEST(ValueAware, GivesUpWholeIncrements) {
  EXPECT_EQ(ValueAwarePolicy().choose(situation()).give_up_groups, 4);
  ReclaimInputs in = situation();
  in.gap_blocks = 200;
  EXPECT_EQ(ValueAwarePolicy().choose(in).give_up_groups, 8);
  // The last increment may be partial.
  in = situation();
  in.boundary.groups_out = 38;
  in.boundary.blocks_gained = {64};
  EXPECT_EQ(ValueAwarePolicy().choose(in).give_up_groups, 2);
}

TEST(ValueAware, QueueDelayIsObserved) {
  ValueAwarePolicy policy;
  EXPECT_EQ(policy.t_queue(), 1000);
  policy.on_rescheduled(5e6, 7e6);
  EXPECT_EQ(policy.t_queue(), 2e6);
  policy.on_rescheduled(5e6, 5e6);
  EXPECT_EQ(policy.t_queue(), 2e6 * 7 / 8);
}

TEST(ValueAware, MeasuredCoefficients) {
  ValueAwareConfig config;
  config.measured = true;
  ValueAwarePolicy policy(config);
  policy.choose(situation());  // learns the geometry
  StepObservation step;
  step.duration = 40e3, step.prefill_tokens = 1000, step.groups_out = 20;
  step.staging.stall = 8e3;
  policy.observe(step);
  const ReclaimDecision decision = policy.choose(situation());
  EXPECT_DOUBLE_EQ(cost_of(decision, ActionKind::kDrop), 0.45 * (544 * 40 + 1500));
  EXPECT_DOUBLE_EQ(cost_of(decision, ActionKind::kGiveUpExperts), 4 * 200 * 64);
}

TEST(StaticPolicy, EvictsThenPreemptsThenWaits) {
  StaticPolicy policy;
  ReclaimInputs in = situation();
  EXPECT_EQ(policy.choose(in).drop_blocks, 34);
  in.cached_blocks = 10;
  in.victims = {victim(3)};
  ReclaimDecision decision = policy.choose(in);
  EXPECT_EQ(decision.kind, ActionKind::kPreemptRecompute);
  EXPECT_EQ(decision.drop_blocks, 10);
  EXPECT_EQ(decision.preempt_recompute, std::vector<RequestId>{7});
  // A waiting request that would not fit takes nothing from the cache.
  in.victims.clear();
  in.admission = true;
  decision = policy.choose(in);
  EXPECT_TRUE(decision.wait);
  EXPECT_EQ(decision.drop_blocks, 0);
}

TEST(MakePolicy, UnknownNameIsAnError) {
  const MemoryLayout layout;
  EXPECT_THROW(make_policy("greedy", {}, layout), Error);
  try {
    policy_traits("greedy");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("static, paper"), std::string::npos);
  }
}

}  // namespace
}  // namespace vamp
