// The prefix cache, seen through the scheduler: what is shared, what goes first, what is charged.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/scheduler_test_util.h"

namespace vamp {
namespace {

TEST(Cache, FullBlocksAreSharedAndOneTokenIsAlwaysComputed) {
  SchedulerHarness harness(small_scheduler(), {.base_blocks = 30, .block_tokens = 4});
  EXPECT_EQ(cost_of(harness, 1, iota(0, 10)), 10);
  EXPECT_EQ(cost_of(harness, 2, iota(0, 10)), 2);  // its partly filled block is nobody else's
  EXPECT_EQ(cost_of(harness, 3, iota(0, 8)),
            4);  // all is there, but its last token's logits are not
  EXPECT_EQ(cost_of(harness, 4, iota(0, 9)), 1);
  EXPECT_EQ(cost_of(harness, 5, iota(1, 10)), 10);
}

TEST(Cache, AConversationGoesOnWhereItsAnswerEnded) {
  SchedulerHarness harness(small_scheduler(), {.base_blocks = 30, .block_tokens = 4});
  cost_of(harness, 1, iota(0, 9), 8);
  std::vector<TokenId> next = harness.prompt(1);
  next.insert(next.end(), harness.output(1).begin(), harness.output(1).end());
  next.push_back(1);  // 18 tokens, of which the KV of 16 is there
  EXPECT_EQ(cost_of(harness, 2, next), 2);
}

TEST(Cache, TenantsDoNotMeet) {
  SchedulerHarness harness(small_scheduler(), {.base_blocks = 30, .block_tokens = 4});
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
  SchedulerConfig config = small_scheduler();
  config.enable_prefix_caching = false;
  SchedulerHarness harness(config, {.base_blocks = 30, .block_tokens = 4});
  EXPECT_EQ(cost_of(harness, 1, iota(0, 10)), 10);
  EXPECT_EQ(cost_of(harness, 2, iota(0, 10)), 10);
  EXPECT_EQ(harness.scheduler().stats().cached_blocks, 0);
}

// n > 1: one prompt, several answers. Those that come later wait for the first one's prefill.
TEST(Cache, OnePromptAskedForManyTimesIsComputedOnce) {
  SchedulerConfig config = small_scheduler();
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
  SchedulerHarness harness(small_scheduler(), {.base_blocks = 40, .block_tokens = 4});
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
  SchedulerHarness harness(small_scheduler(), {.base_blocks = 9, .block_tokens = 4});
  cost_of(harness, 1, iota(0, 13));    // three blocks stay
  cost_of(harness, 2, iota(100, 13));  // three more
  cost_of(harness, 3, iota(0, 9));     // touches the first two of request 1
  cost_of(harness, 4, iota(200, 17));  // five: three are free, request 1's end and request 2's go
  EXPECT_EQ(harness.scheduler().stats().cached_blocks + harness.scheduler().stats().free_blocks, 9);
  EXPECT_EQ(cost_of(harness, 5, iota(0, 9)), 1);
  EXPECT_EQ(cost_of(harness, 6, iota(100, 9)), 1);
}

TEST(Cache, ASessionThatIsOverIsForgottenFirst) {
  SchedulerHarness harness(small_scheduler(), {.base_blocks = 9, .block_tokens = 4});
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
  SchedulerHarness harness(small_scheduler(), {.base_blocks = 6, .block_tokens = 4},
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

TEST(Cache, ARequestThatWaitsStepAfterStepIsOneDecision) {
  SchedulerConfig config = small_scheduler();
  config.admission_retry = 0;
  SchedulerHarness harness(config, {.base_blocks = 10, .block_tokens = 4});
  harness.add(1, iota(0, 20), 18);
  harness.step();
  harness.add(2, iota(100, 24), 2);
  harness.run();
  harness.expect_answer(2, 2);
  // It waits; then what request 1 has left is dropped, for its prompt and for its answer.
  ASSERT_EQ(harness.decisions().size(), 3u);
  EXPECT_TRUE(harness.decisions()[0].decision.wait);
  EXPECT_EQ(harness.decisions()[0].repeats, 1);
  const DecisionRecord& waited = harness.outcomes().at(harness.decisions()[0].id);
  EXPECT_GT(waited.repeats, 10);
  EXPECT_EQ(waited.inputs.request, 2u);
  EXPECT_NEAR(waited.until, harness.stats(2).first_scheduled, 2.5e3);
  EXPECT_EQ(harness.scheduler().stats().decisions, 3u);
}

TEST(Cache, ARequestThatFoundNoRoomIsTriedAgainWhenSomethingComesFreeOrLater) {
  for (const Micros retry : {1e12, 5e3}) {
    SchedulerConfig config = small_scheduler();
    config.admission_retry = retry;
    SchedulerHarness harness(config, {.base_blocks = 10, .block_tokens = 4});
    harness.add(1, iota(0, 20), 18);
    harness.step();
    harness.add(2, iota(100, 24), 2);
    harness.run();
    harness.expect_answer(2, 2);  // request 1 has ended, which is soon enough for both
    const DecisionRecord& first = harness.decisions().at(0);
    EXPECT_TRUE(first.decision.wait);
    const auto outcome = harness.outcomes().find(first.id);
    const int asked = outcome == harness.outcomes().end() ? 1 : outcome->second.repeats;
    if (retry > 1e6) {
      EXPECT_LE(asked, 2);
    } else {
      EXPECT_GT(asked, 2);
      EXPECT_LT(asked, 10);
    }
  }
}

TEST(Cache, ResetForgetsEverythingThatNobodyRunsOn) {
  SchedulerConfig config = small_scheduler();
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
