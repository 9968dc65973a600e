#include "core/priced_policy.h"

#include <gtest/gtest.h>

#include "core/scheduler_test_util.h"

namespace vamp {
namespace {

// A pool of 256 blocks of 16 tokens; 64 groups of two blocks each may go, four an increment.
MemoryLayout layout_for_test() {
  return test_layout({.base_blocks = 256,
                      .block_tokens = 16,
                      .block_bytes = 3072,
                      .group_bytes = 6144,
                      .moe_layers = 5,
                      .groups_per_layer = 32,
                      .max_groups_out_per_layer = 16,
                      .increment_groups = 4});
}

PricedConfig config_for_test() {
  PricedConfig config;
  config.planner.prefill = {0, 100, 0};
  config.planner.decode = {.base = 1000, .per_request = 10, .per_context_token = 0};
  config.planner.up_bytes_per_us = config.planner.down_bytes_per_us = 100;
  config.planner.experts_per_token = 2;
  return config;
}

EvictionCandidate segment(SessionId session, int blocks, int clean, uint64_t handle) {
  return {.blocks = blocks,
          .tokens = blocks * 16,
          .prefix_tokens = 0,
          .session = session,
          .clean_blocks = clean,
          .handle = handle};
}

ReclaimInputs inputs_for_test(const MemoryLayout& layout) {
  ReclaimInputs in;
  in.now = 10e6;
  in.gap_blocks = in.needed_blocks = 10;
  in.block_tokens = 16;
  in.cached_blocks = 100;
  in.total_blocks = 256;
  in.running = 2;
  in.boundary.max_groups_out = layout.max_groups_out();
  in.boundary.increment_groups = layout.increment_groups;
  in.boundary.group_bytes = layout.group_bytes();
  in.boundary.block_bytes = layout.block_bytes;
  for (int k = 1; k <= 16; ++k) in.boundary.blocks_gained.push_back(8 * k);
  return in;
}

class PricedPolicyTest : public testing::Test {
 protected:
  // Turns that run for 0.1 s and take 256 tokens each, so that rates are known.
  void turn(PricedPolicy& policy, SessionId session, Micros start, int prompt) {
    policy.on_turn_started(session, prompt, start);
    policy.on_turn_scheduled(session, prompt, 0, start);
    RequestStats stats;
    stats.prompt_tokens = prompt;
    stats.output_tokens = 10;
    policy.on_turn_ended(session, stats, {}, start + 0.1e6);
  }
  MemoryLayout layout_ = layout_for_test();
  ReclaimInputs in_ = inputs_for_test(layout_);
};

TEST_F(PricedPolicyTest, CleanBlocksGoFirst) {
  PricedPolicy policy(layout_, config_for_test());
  in_.evictable = {segment(1, 32, 0, 11), segment(2, 32, 32, 12)};
  const ReclaimDecision decision = policy.choose(in_);
  EXPECT_EQ(decision.kind, ActionKind::kDrop);
  EXPECT_EQ(decision.drop, std::vector<uint64_t>{12});
  EXPECT_EQ(decision.drop_blocks, 10);
  EXPECT_FALSE(decision.costs.empty());
  EXPECT_FALSE(decision.note.empty());
}

TEST_F(PricedPolicyTest, EqualPricesKeepTheOrderOfUseAndOnlyTheGapGoes) {
  PricedConfig config = config_for_test();
  config.experts = false;
  PricedPolicy policy(layout_, config);
  in_.gap_blocks = 40;
  in_.evictable = {segment(1, 32, 0, 11), segment(2, 32, 0, 12)};
  const ReclaimDecision decision = policy.choose(in_);
  EXPECT_EQ(decision.drop, (std::vector<uint64_t>{11, 12}));
  EXPECT_EQ(decision.drop_blocks, 40);
}

TEST_F(PricedPolicyTest, AWaitingTurnsPrefixOutlivesThatOfOneThatHasJustFinished) {
  PricedConfig plain = config_for_test();
  plain.experts = false;
  PricedPolicy policy(layout_, plain);
  StepObservation step;
  step.now = 9e6, step.duration = 10e3, step.decode_requests = 1, step.running = 1;
  policy.observe(step);
  policy.on_turn_started(1, 500, 8e6);  // waits
  policy.on_turn_started(2, 500, 8.5e6);
  policy.on_turn_ended(2, {}, {}, 9.9e6);  // in the order of use session 1 is the older
  in_.evictable = {segment(1, 32, 0, 11), segment(2, 32, 0, 12)};
  EXPECT_EQ(policy.choose(in_).drop, std::vector<uint64_t>{12});

  plain.queue_aware_reuse = false;
  EXPECT_EQ(PricedPolicy(layout_, plain).choose(in_).drop, std::vector<uint64_t>{11});
}

TEST_F(PricedPolicyTest, WhatTheApplicationSaysOfReuseDecidesWhoGoes) {
  PricedConfig config = config_for_test();
  config.experts = false;
  PricedPolicy policy(layout_, config);
  in_.evictable = {segment(1, 32, 0, 11), segment(2, 32, 0, 12), segment(3, 32, 0, 13)};
  const auto ended = [&](SessionId session, const ReuseHint& hint) {
    policy.on_turn_started(session, 500, 9e6);
    policy.on_turn_ended(session, {}, hint, 9.5e6);
  };
  ended(1, {.expected_gap = 1e6});
  ended(2, {.expected_gap = 3600e6});
  ended(3, {.expected_gap = {}, .release = true});
  in_.gap_blocks = 40;
  EXPECT_EQ(policy.choose(in_).drop, (std::vector<uint64_t>{13, 12}));
}

TEST_F(PricedPolicyTest, AWaitingRequestTakesNoExpertsBeyondThePlanAndWaits) {
  PricedPolicy policy(layout_, config_for_test());
  in_.admission = true;
  in_.cached_blocks = 5;
  in_.evictable = {segment(1, 5, 0, 11)};
  const ReclaimDecision decision = policy.choose(in_);
  EXPECT_TRUE(decision.wait);
  EXPECT_EQ(decision.give_up_groups, 0);
  EXPECT_EQ(decision.drop_blocks, 0);
}

TEST_F(PricedPolicyTest, ARunningRequestTakesExpertsRatherThanPreempt) {
  PricedConfig config = config_for_test();
  config.planner.up_bytes_per_us = 1e6;  // staging costs next to nothing
  config.requeue = 5e6;
  config.map_us = 1;
  in_.cached_blocks = 0;
  in_.victims = {{.id = 7, .context_tokens = 800, .total_blocks = 50}};
  const ReclaimDecision cheap = PricedPolicy(layout_, config).choose(in_);
  EXPECT_EQ(cheap.kind, ActionKind::kGiveUpExperts);
  EXPECT_EQ(cheap.give_up_groups, 8);  // 10 blocks: two increments of 8
  // Where staging is slow it preempts.
  config.planner.up_bytes_per_us = 0.5;
  const ReclaimDecision dear = PricedPolicy(layout_, config).choose(in_);
  EXPECT_EQ(dear.kind, ActionKind::kPreemptRecompute);
  EXPECT_EQ(dear.preempt_recompute, std::vector<RequestId>{7});
  // Without experts there is nothing else.
  config.planner.up_bytes_per_us = 1e6;
  config.experts = false;
  EXPECT_EQ(PricedPolicy(layout_, config).choose(in_).kind, ActionKind::kPreemptRecompute);
}

TEST_F(PricedPolicyTest, WritesBackWhatIsCheaperToCopyThanToComputeAgain) {
  BackgroundInputs background;
  background.now = 10e6;
  background.total_blocks = 256;
  background.host_total_blocks = 1000;
  background.dirty = {segment(1, 32, 0, 11), segment(2, 32, 16, 12)};
  PricedConfig config = config_for_test();
  EXPECT_EQ(PricedPolicy(layout_, config).background(background).write_back,
            (std::vector<uint64_t>{11, 12}));
  config.write_back_bytes = 1;  // one batch is at least one run
  EXPECT_EQ(PricedPolicy(layout_, config).background(background).write_back,
            std::vector<uint64_t>{11});
  config.planner.prefill = {0, 1e-3, 0};  // prefill is faster than the link
  EXPECT_TRUE(PricedPolicy(layout_, config).background(background).write_back.empty());
  config = config_for_test();
  config.host_tier = false;
  EXPECT_TRUE(PricedPolicy(layout_, config).background(background).write_back.empty());
}

TEST_F(PricedPolicyTest, RestoresOnlyWhenPressureHasBeenGone) {
  PricedPolicy policy(layout_, config_for_test());
  BackgroundInputs background;
  background.now = 10e6;
  background.step = 100;
  background.free_blocks = 40;
  background.total_blocks = 256 + 32;
  background.boundary = in_.boundary;
  background.boundary.groups_out = 16;
  background.blocks_lost = {8, 16, 24, 32};
  EXPECT_EQ(policy.background(background).restore_groups, 0);
  background.now += 0.5e6;
  background.step += 10;
  EXPECT_EQ(policy.background(background).restore_groups, 0);
  background.waiting = 1;  // pressure: the clock starts again
  EXPECT_EQ(policy.background(background).restore_groups, 0);
  background.waiting = 0;
  background.now += 0.6e6;
  EXPECT_EQ(policy.background(background).restore_groups, 0);
  background.now += 1.1e6;
  // One increment's worth of blocks stays free.
  EXPECT_EQ(policy.background(background).restore_groups, 12);
}

TEST_F(PricedPolicyTest, LimitsAdmissionToThePlansPoolWhereTheBoundaryIsBeyondIt) {
  PricedPolicy policy(layout_, config_for_test());
  EXPECT_EQ(policy.admission_limit(0, 10e6), std::nullopt);
  EXPECT_EQ(policy.admission_limit(16, 10e6), 256);  // no turn seen: the plan is the whole model
  PricedConfig config = config_for_test();
  config.experts = false;
  EXPECT_EQ(PricedPolicy(layout_, config).admission_limit(0, 10e6), std::nullopt);
}

// Under pressure an increment comes back when its blocks save less prefill than its staging costs.
TEST_F(PricedPolicyTest, RestoresUnderPressureWhatCostsMoreThanItSaves) {
  const auto restored = [&](double link, int prompt) {
    PricedConfig config = config_for_test();
    config.planner.up_bytes_per_us = link;
    config.host_tier = false;
    PricedPolicy policy(layout_, config);
    StepObservation step;
    step.duration = 1010, step.decode_requests = 1, step.running = 1, step.context_tokens = 500;
    for (int i = 0; i < 40; ++i) {
      step.now = i * 1e5;
      policy.observe(step);
      turn(policy, 1 + i % 4, i * 1e5, prompt);
    }
    BackgroundInputs background;
    background.now = 4.02e6;
    background.cached_blocks = 100;
    background.total_blocks = 256 + 128;
    background.waiting = 1;
    background.boundary = in_.boundary;
    background.boundary.groups_out = 64;
    background.blocks_lost = {8, 16};
    return policy.background(background).restore_groups;
  };
  EXPECT_EQ(restored(0.2, 500), 4);   // four sessions of 500 tokens fit without
  EXPECT_EQ(restored(0.2, 1500), 4);  // these need it all, but each step pays 10^6 us for staging
  EXPECT_EQ(restored(1e9, 1500), 0);  // staging costs nothing
}

// ---- The planner

TEST_F(PricedPolicyTest, PlanFollowsThePoolThatTheTurnsNeed) {
  PricedConfig config = config_for_test();
  config.planner.up_bytes_per_us = 1e4;  // 24 KiB an increment: 2.4 us a step
  PricedPolicy small(layout_, config), large(layout_, config);
  StepObservation step;
  step.duration = 1010, step.decode_requests = 1, step.running = 1, step.context_tokens = 500;
  for (int i = 0; i < 40; ++i) {
    step.now = i * 1e5;
    small.observe(step), large.observe(step);
    // Four sessions of 500 tokens fit into 4,096; four of 1,100 need 19 blocks more.
    turn(small, 1 + i % 4, i * 1e5, 500);
    turn(large, 1 + i % 4, i * 1e5, 1100);
  }
  in_.now = 4.02e6;
  in_.evictable = {segment(4, 32, 0, 11)};
  in_.admission = true;
  EXPECT_EQ(small.choose(in_).give_up_groups, 0);
  const ReclaimDecision decision = large.choose(in_);
  EXPECT_EQ(decision.give_up_groups, 8) << decision.note;
  // Where each step would pay more for staging than the turns save, nothing is given up.
  config.planner.up_bytes_per_us = 0.2;
  PricedPolicy slow(layout_, config);
  for (int i = 0; i < 40; ++i) {
    step.now = i * 1e5;
    slow.observe(step);
    turn(slow, 1 + i % 4, i * 1e5, 1100);
  }
  EXPECT_EQ(slow.choose(in_).give_up_groups, 0);
}

}  // namespace
}  // namespace vamp
