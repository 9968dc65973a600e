// The cache's rules, seen through the scheduler: sharing, the host tier, swapping, the moving pool.
#include <gtest/gtest.h>

#include "core/scheduler_test_util.h"

namespace vamp {
namespace {

SchedulerConfig small_config() {
  SchedulerConfig config;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 64;
  return config;
}

std::vector<TokenId> iota(int first, int count) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

class ScriptedPolicy final : public ReclaimPolicy {
 public:
  std::function<ReclaimDecision(const ReclaimInputs&)> on_choose;
  std::function<BackgroundDecision(const BackgroundInputs&)> on_background;
  std::vector<std::pair<uint64_t, int>> reused;
  const char* name() const override { return "scripted"; }
  ReclaimDecision choose(const ReclaimInputs& inputs) override {
    return on_choose ? on_choose(inputs) : evict_or_preempt(inputs);
  }
  BackgroundDecision background(const BackgroundInputs& inputs) override {
    return on_background ? on_background(inputs) : BackgroundDecision();
  }
  void on_evicted_reused(uint64_t decision, int tokens, Micros) override {
    reused.emplace_back(decision, tokens);
  }
};

// Computed by running request `id` to its end.
int64_t cost_of(SchedulerHarness& harness, RequestId id, std::vector<TokenId> prompt,
                int tokens = 1) {
  const int64_t before = harness.executor().computed_tokens();
  harness.add(id, std::move(prompt), tokens);
  harness.run();
  harness.expect_answer(id, tokens);
  return harness.executor().computed_tokens() - before;
}

TEST(Cache, FullBlocksAreSharedAndOneTokenIsAlwaysComputed) {
  SchedulerHarness harness(small_config(), {.base_blocks = 30, .block_tokens = 4});
  EXPECT_EQ(cost_of(harness, 1, iota(0, 10)), 10);
  EXPECT_EQ(cost_of(harness, 2, iota(0, 10)), 2);  // its partly filled block is nobody else's
  EXPECT_EQ(cost_of(harness, 3, iota(0, 8)),
            4);  // all is there, but its last token's logits are not
  EXPECT_EQ(cost_of(harness, 4, iota(0, 9)), 1);
  EXPECT_EQ(cost_of(harness, 5, iota(1, 10)), 10);
}

TEST(Cache, AConversationGoesOnWhereItsAnswerEnded) {
  SchedulerHarness harness(small_config(), {.base_blocks = 30, .block_tokens = 4});
  cost_of(harness, 1, iota(0, 9), 8);
  std::vector<TokenId> next = harness.prompt(1);
  next.insert(next.end(), harness.output(1).begin(), harness.output(1).end());
  next.push_back(1);  // 18 tokens, of which the KV of 16 is there
  EXPECT_EQ(cost_of(harness, 2, next), 2);
}

TEST(Cache, TenantsDoNotMeet) {
  SchedulerHarness harness(small_config(), {.base_blocks = 30, .block_tokens = 4});
  for (RequestId id = 1; id <= 3; ++id) {
    RequestInput input;
    input.id = id;
    input.prompt = iota(0, 10);
    input.cache_salt = id % 2;
    input.sampling.max_tokens = 1;
    harness.add(input);
    harness.run();
  }
  EXPECT_EQ(harness.stats(2).cached_tokens, 0);
  EXPECT_EQ(harness.stats(3).cached_tokens, 8);
}

TEST(Cache, CanBeOff) {
  SchedulerConfig config = small_config();
  config.enable_prefix_caching = false;
  SchedulerHarness harness(config, {.base_blocks = 30, .block_tokens = 4});
  EXPECT_EQ(cost_of(harness, 1, iota(0, 10)), 10);
  EXPECT_EQ(cost_of(harness, 2, iota(0, 10)), 10);
  EXPECT_EQ(harness.scheduler().stats().cached_blocks, 0);
}

// n > 1: one prompt, several answers. Those that come later wait for the first one's prefill.
TEST(Cache, OnePromptAskedForManyTimesIsComputedOnce) {
  SchedulerConfig config = small_config();
  config.max_num_batched_tokens = 8;  // in several chunks
  SchedulerHarness harness(config, {.base_blocks = 40, .block_tokens = 4});
  for (RequestId id = 1; id <= 4; ++id) {
    RequestInput input;
    input.id = id;
    input.prompt = iota(0, 30);
    input.sampling.max_tokens = 6;
    input.sampling.seed = id;
    harness.add(input);
  }
  harness.run();
  for (RequestId id = 1; id <= 4; ++id) harness.expect_answer(id, 6);
  EXPECT_NE(harness.output(1), harness.output(2));
  // 30 tokens once, the last 2 of each other one, and 5 or 6 rows (one a surplus) of each answer.
  EXPECT_LE(harness.executor().computed_tokens(), 30 + 3 * 2 + 4 * 6);
}

TEST(Cache, EqualAnswersEndUpInTheSameBlocks) {
  SchedulerHarness harness(small_config(), {.base_blocks = 40, .block_tokens = 4});
  harness.add(1, iota(0, 9), 20);
  harness.add(2, iota(0, 9), 20);
  int edits = 0;
  int most = 0;
  for (int i = 0; i < 100 && !harness.scheduler().idle(); ++i) {
    edits += static_cast<int>(harness.step().edit_tables.size());
    most = std::max(most, harness.scheduler().stats().referenced_blocks);
  }
  harness.expect_answer(1, 20);
  harness.expect_answer(2, 20);
  EXPECT_GT(edits, 0);
  EXPECT_LE(most, 10);  // 8 for one; two of everything would be 16
}

TEST(Cache, TheLeastRecentlyUsedGoesFirstChildrenBeforeParents) {
  SchedulerHarness harness(small_config(), {.base_blocks = 9, .block_tokens = 4});
  cost_of(harness, 1, iota(0, 13));    // three blocks stay
  cost_of(harness, 2, iota(100, 13));  // three more
  cost_of(harness, 3, iota(0, 9));     // touches the first two of request 1
  cost_of(harness, 4, iota(200, 17));  // five: three are free, request 1's end and request 2's go
  EXPECT_EQ(harness.scheduler().stats().cached_blocks + harness.scheduler().stats().free_blocks, 9);
  EXPECT_EQ(cost_of(harness, 5, iota(0, 9)), 1);
  EXPECT_EQ(cost_of(harness, 6, iota(100, 9)), 1);
}

TEST(Cache, ASessionThatIsOverIsForgottenFirst) {
  SchedulerHarness harness(small_config(), {.base_blocks = 9, .block_tokens = 4});
  cost_of(harness, 1, iota(0, 13));
  RequestInput input;
  input.id = 2;
  input.prompt = iota(100, 13);
  input.sampling.max_tokens = 1;
  input.reuse.release = true;
  harness.add(input);
  harness.run();
  cost_of(harness, 3, iota(200, 17));
  EXPECT_EQ(cost_of(harness, 4, iota(0, 13)), 1);
  EXPECT_GT(cost_of(harness, 5, iota(100, 13)), 1);
}

TEST(Cache, ADecisionLearnsThatItsVictimWasAskedForAgain) {
  auto policy = std::make_unique<ScriptedPolicy>();
  ScriptedPolicy* script = policy.get();
  SchedulerHarness harness(small_config(), {.base_blocks = 6, .block_tokens = 4},
                           std::move(policy));
  cost_of(harness, 1, iota(0, 17));
  cost_of(harness, 2, iota(100, 17));  // drops at least three of the four
  ASSERT_EQ(harness.decisions().size(), 1u);
  EXPECT_EQ(harness.decisions()[0].blocks_won, harness.decisions()[0].inputs.gap_blocks);
  EXPECT_TRUE(harness.outcomes().empty());
  cost_of(harness, 3, iota(0, 17));
  ASSERT_EQ(harness.outcomes().count(1), 1u);
  EXPECT_EQ(harness.outcomes().at(1).reused_tokens, 4 * harness.decisions()[0].blocks_won);
  EXPECT_GT(harness.outcomes().at(1).first_reuse, 0);
  ASSERT_EQ(script->reused.size(), 1u);
  EXPECT_EQ(script->reused[0].first, 1u);
}

// Demotes whatever is shown to it.
ReclaimDecision demote_all(const ReclaimInputs& inputs) {
  ReclaimDecision decision;
  decision.kind = ActionKind::kDemote;
  for (const EvictionCandidate& candidate : inputs.evictable)
    decision.demote.push_back(candidate.handle);
  return decision;
}

TEST(HostTier, WhatWasDemotedComesBackWhileOthersRun) {
  SchedulerConfig config = small_config();
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
  SchedulerConfig config = small_config();
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
  SchedulerConfig config = small_config();
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

TEST(HostTier, WaitsForCopiesWhenThereIsNothingElseToDo) {
  SchedulerConfig config = small_config();
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
    SchedulerConfig config = small_config();
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

TEST(MovingPool, ExpertsGivenUpServeTheSameAllocation) {
  auto policy = std::make_unique<ScriptedPolicy>();
  policy->on_choose = [](const ReclaimInputs& inputs) {
    ReclaimDecision decision;
    const std::vector<int>& gained = inputs.boundary.blocks_gained;
    for (size_t k = 0; k < gained.size(); ++k) {
      if (gained[k] < inputs.gap_blocks) continue;
      decision.give_up_groups = static_cast<int>(k + 1) * inputs.boundary.increment_groups;
      break;
    }
    return decision;
  };
  SchedulerHarness harness(
      small_config(),
      {.base_blocks = 6, .block_tokens = 4, .group_bytes = 2304, .max_groups_out_per_layer = 6},
      std::move(policy));
  cost_of(harness, 1, iota(0, 21));
  harness.add(2, iota(100, 17), 1);
  const StepPlan plan = harness.step();
  ASSERT_TRUE(plan.boundary.has_value());
  EXPECT_EQ(plan.batch.size(), 1u);
  ASSERT_EQ(harness.decisions().size(), 1u);
  const DecisionRecord& decision = harness.decisions()[0];
  const int increments =
      decision.decision.give_up_groups / decision.inputs.boundary.increment_groups;
  EXPECT_EQ(decision.blocks_won,
            decision.inputs.boundary.blocks_gained[static_cast<size_t>(increments - 1)]);
  EXPECT_EQ(plan.boundary->groups_out, decision.decision.give_up_groups);
  harness.run();
  EXPECT_EQ(harness.scheduler().stats().cached_blocks, 5 + 4);
}

// Down again while requests run: their blocks move, cached ones move or go, nobody notices.
TEST(MovingPool, ComesBackUnderRunningRequests) {
  auto policy = std::make_unique<ScriptedPolicy>();
  auto restore = std::make_shared<int>(0);
  policy->on_choose = [](const ReclaimInputs& inputs) {
    ReclaimDecision decision;
    decision.give_up_groups = inputs.boundary.can_move ? 100 : 0;
    if (decision.give_up_groups == 0) decision = evict_or_preempt(inputs);
    return decision;
  };
  policy->on_background = [restore](const BackgroundInputs&) {
    BackgroundDecision decision;
    decision.restore_groups = std::exchange(*restore, 0);
    return decision;
  };
  SchedulerHarness harness(
      small_config(),
      {.base_blocks = 14, .block_tokens = 4, .group_bytes = 2304, .max_groups_out_per_layer = 6},
      std::move(policy));
  cost_of(harness, 1, iota(0, 21));    // five blocks stay cached
  cost_of(harness, 2, iota(100, 33));  // eight more
  harness.add(3, iota(200, 14), 10);   // in the blocks that experts give
  harness.step();
  ASSERT_EQ(harness.scheduler().stats().groups_out, harness.layout().max_groups_out());
  *restore = harness.layout().max_groups_out();
  int moves = 0;
  bool unmapped = false;
  for (int i = 0; i < 100 && !harness.finished(3); ++i) {
    const StepPlan plan = harness.step();
    moves += static_cast<int>(plan.move_blocks.size());
    unmapped |= plan.boundary && !plan.boundary->unmap_slots.empty();
  }
  harness.run();
  harness.expect_answer(3, 10);
  EXPECT_GT(moves, 0);
  EXPECT_TRUE(unmapped);
  EXPECT_EQ(harness.scheduler().stats().preemptions, 0u);
  EXPECT_EQ(cost_of(harness, 4, iota(100, 33)), 1);  // the warmer of the two is still cached
}

TEST(MovingPool, AfterAFailedMoveTheBoundaryStaysForAWhile) {
  SchedulerConfig config = small_config();
  config.boundary_backoff = 50e3;
  auto policy = std::make_unique<ScriptedPolicy>();
  policy->on_choose = [](const ReclaimInputs& inputs) {
    ReclaimDecision decision;
    decision.give_up_groups = inputs.boundary.can_move ? 4 : 0;
    decision.wait = !inputs.boundary.can_move;
    return decision;
  };
  SchedulerHarness harness(config,
                           {.base_blocks = 6, .block_tokens = 4, .max_groups_out_per_layer = 6},
                           std::move(policy));
  harness.executor().fail_next_step();
  harness.add(1, iota(0, 30), 2);  // cannot do without
  harness.step();
  harness.step();
  EXPECT_EQ(harness.scheduler().stats().groups_out, 0);
  const Micros failed = harness.now();
  EXPECT_LE(harness.scheduler().next_wakeup(), failed + 50e3);
  harness.run();
  harness.expect_answer(1, 2);
  EXPECT_GE(harness.stats(1).first_token, failed + 48e3);
}

TEST(Cache, ResetForgetsEverythingThatNobodyRunsOn) {
  SchedulerConfig config = small_config();
  config.host_blocks = 20;
  auto policy = std::make_unique<ScriptedPolicy>();
  policy->on_choose = demote_all;
  SchedulerHarness harness(config, {.base_blocks = 12, .block_tokens = 4}, std::move(policy));
  cost_of(harness, 1, iota(0, 33));
  cost_of(harness, 2, iota(100, 33));
  harness.run();
  harness.scheduler().reset_prefix_cache();
  harness.scheduler().check_invariants();
  EXPECT_EQ(harness.scheduler().stats().cached_blocks, 0);
  EXPECT_EQ(harness.scheduler().stats().host_used_blocks, 0);
  EXPECT_EQ(cost_of(harness, 3, iota(0, 33)), 33);
}

}  // namespace
}  // namespace vamp
