// The host tier, seen through the scheduler: demotion, promotion, write-back and swapping.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/scheduler_test_util.h"

namespace vamp {
namespace {

TEST(HostTier, WhatWasDemotedComesBackWhileOthersRun) {
  SchedulerConfig config = small_scheduler();
  config.host_blocks = 20;
  auto policy = std::make_unique<ScriptedPolicy>();
  auto demoting = std::make_shared<bool>(true);
  policy->on_choose = [demoting](const ReclaimInputs& inputs) {
    return *demoting ? demote_all(inputs) : evict_or_preempt(inputs);
  };
  SchedulerHarness harness(config, {.base_blocks = 14, .block_tokens = 4}, std::move(policy));
  cost_of(harness, 1, iota(0, 33));
  cost_of(harness, 2, iota(100, 37));
  EXPECT_GT(harness.scheduler().stats().host_used_blocks, 0);
  harness.run();

  *demoting = false;
  harness.add(3, iota(500, 4), 12);
  harness.step();
  harness.executor().set_copy_rate(0);
  const int64_t before = harness.executor().computed_tokens();
  harness.add(4, iota(0, 33), 1);
  harness.step();
  EXPECT_EQ(harness.scheduler().stats().running, 2);
  for (int i = 0; i < 5; ++i) {
    const StepPlan plan = harness.step();
    EXPECT_EQ(plan.num_tokens(), 1);  // the other one decodes
  }
  EXPECT_FALSE(harness.finished(4));
  harness.executor().set_copy_rate(0.5);
  harness.run();
  harness.expect_answer(3, 12);
  harness.expect_answer(4, 1);
  EXPECT_EQ(harness.stats(4).cached_tokens + harness.stats(4).host_cached_tokens, 32);
  EXPECT_GT(harness.stats(4).host_cached_tokens, 0);
  EXPECT_LE(harness.executor().computed_tokens() - before, 4 + 12 + 1);
}

TEST(HostTier, WrittenBackAheadADropIsFreeAndLosesNothing) {
  SchedulerConfig config = small_scheduler();
  config.host_blocks = 20;
  auto policy = std::make_unique<ScriptedPolicy>();
  policy->on_background = [](const BackgroundInputs& inputs) {
    BackgroundDecision decision;
    for (const EvictionCandidate& candidate : inputs.dirty) {
      if (candidate.clean_blocks < candidate.blocks)
        decision.write_back.push_back(candidate.handle);
    }
    return decision;
  };
  SchedulerHarness harness(config, {.base_blocks = 12, .block_tokens = 4}, std::move(policy));
  cost_of(harness, 1, iota(0, 33));
  for (int i = 0; i < 3; ++i) harness.step();
  EXPECT_EQ(harness.scheduler().stats().host_used_blocks, 8);
  EXPECT_EQ(harness.scheduler().stats().cached_blocks, 8);
  const StepPlan plan = [&] {
    harness.add(2, iota(100, 41), 1);
    return harness.step();
  }();
  EXPECT_EQ(plan.batch.size(), 1u);  // room at once
  ASSERT_EQ(harness.decisions().size(), 1u);
  EXPECT_EQ(harness.decisions()[0].inputs.evictable[0].clean_blocks, 8);
  harness.run();
  EXPECT_EQ(cost_of(harness, 3, iota(0, 33)), 1);
}

TEST(HostTier, IsFullThenItsOwnLeastRecentlyUsedGoes) {
  SchedulerConfig config = small_scheduler();
  config.host_blocks = 8;
  auto policy = std::make_unique<ScriptedPolicy>();
  policy->on_choose = demote_all;
  SchedulerHarness harness(config, {.base_blocks = 9, .block_tokens = 4}, std::move(policy));
  for (int i = 0; i < 4; ++i) cost_of(harness, static_cast<RequestId>(i + 1), iota(100 * i, 33));
  harness.run();
  EXPECT_EQ(harness.scheduler().stats().host_used_blocks, 8);
  // The newest two are there, in one tier or the other.
  EXPECT_EQ(cost_of(harness, 8, iota(200, 33)), 1);
  EXPECT_EQ(cost_of(harness, 9, iota(0, 33)), 33);
}

TEST(HostTier, WhatItDropsWhenFullIsChargedWhenAskedForAgain) {
  SchedulerConfig config = small_scheduler();
  config.host_blocks = 8;
  auto policy = std::make_unique<ScriptedPolicy>();
  ScriptedPolicy* script = policy.get();
  policy->on_choose = demote_all;
  SchedulerHarness harness(config, {.base_blocks = 9, .block_tokens = 4}, std::move(policy));
  for (int i = 0; i < 4; ++i) cost_of(harness, static_cast<RequestId>(i + 1), iota(100 * i, 33));
  EXPECT_EQ(harness.scheduler().stats().host_recomputed_tokens, 0u);
  cost_of(harness, 5, iota(0, 33));
  EXPECT_EQ(harness.scheduler().stats().host_recomputed_tokens, 32u);
  EXPECT_EQ(harness.scheduler().stats().recomputed_tokens, 0u);
  ASSERT_EQ(script->reused.size(), 1u);
  EXPECT_EQ(script->reused[0], (std::pair<uint64_t, int>(0, 32)));
}

// Two that go on from the same prefix in the host tier, by the same tokens: while it comes back
// neither computes, then one does for both.
TEST(HostTier, TwoThatWaitForTheSamePrefixComputeTheRestOnce) {
  SchedulerConfig config = small_scheduler();
  config.host_blocks = 20;
  config.max_num_batched_tokens = 8;
  auto policy = std::make_unique<ScriptedPolicy>();
  policy->on_choose = demote_all;
  SchedulerHarness harness(config, {.base_blocks = 30, .block_tokens = 4}, std::move(policy));
  cost_of(harness, 1, iota(0, 33));
  cost_of(harness, 2, iota(1000, 113));
  ASSERT_EQ(harness.scheduler().stats().host_used_blocks, 8);
  harness.executor().set_copy_rate(0);
  const int64_t before = harness.executor().computed_tokens();
  harness.add(3, iota(0, 64), 1);
  harness.add(4, iota(0, 64), 1);
  for (int i = 0; i < 4; ++i) harness.step();
  harness.executor().set_copy_rate(1);
  harness.run();
  harness.expect_answer(3, 1);
  harness.expect_answer(4, 1);
  // 32 once, and the last block of the other one, whose logits it needs.
  EXPECT_EQ(harness.executor().computed_tokens() - before, 32 + 4);
}

TEST(HostTier, WaitsForCopiesWhenThereIsNothingElseToDo) {
  SchedulerConfig config = small_scheduler();
  config.host_blocks = 20;
  auto policy = std::make_unique<ScriptedPolicy>();
  policy->on_choose = demote_all;
  SchedulerHarness harness(config, {.base_blocks = 9, .block_tokens = 4}, std::move(policy));
  cost_of(harness, 1, iota(0, 33));
  harness.executor().set_copy_rate(0);  // they end only when waited for
  harness.add(2, iota(100, 33), 1);
  bool awaited = false;
  for (int i = 0; i < 100 && !harness.scheduler().idle(); ++i)
    awaited |= harness.step().await_copies;
  EXPECT_TRUE(awaited);
  harness.expect_answer(2, 1);
}

// The victim's blocks, the partly filled one included, go out and come back: nothing is computed
// twice.
TEST(HostTier, PreemptionBySwapComputesNothingAgain) {
  for (const bool swap : {false, true}) {
    SchedulerConfig config = small_scheduler();
    config.host_blocks = 40;
    auto policy = std::make_unique<ScriptedPolicy>();
    policy->on_choose = [swap](const ReclaimInputs& inputs) {
      ReclaimDecision decision = evict_or_preempt(inputs);
      if (!inputs.victims.empty() && swap) {
        decision = {};
        decision.preempt_swap.push_back(inputs.victims[0].id);
      }
      return decision;
    };
    SchedulerHarness harness(config, {.base_blocks = 12, .block_tokens = 4}, std::move(policy));
    harness.add(1, iota(0, 18), 26);
    harness.now() += 10;
    harness.add(2, iota(100, 18), 26);
    harness.run();
    harness.expect_answer(1, 26);
    harness.expect_answer(2, 26);
    EXPECT_GT(harness.stats(2).preemptions, 0);
    const int64_t least = 2 * (18 + 25);
    if (swap) {
      EXPECT_LE(harness.executor().computed_tokens(), least + 2);  // a surplus row each
    } else {
      EXPECT_GT(harness.executor().computed_tokens(), least + 2);
    }
    EXPECT_EQ(harness.scheduler().stats().referenced_blocks, 0);
  }
}

}  // namespace
}  // namespace vamp
