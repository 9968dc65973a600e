// The scheduler's rules, one by one.
#include "core/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/scheduler_test_util.h"

namespace vamp {
namespace {

using testing::HasSubstr;

SchedulerConfig small_config() {
  SchedulerConfig config;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 16;
  return config;
}

TEST(Scheduler, AnswersWithTheTokensThatTheHistoryDemands) {
  SchedulerHarness harness(small_config(), {.base_blocks = 20});
  Random random(1);
  for (RequestId id = 1; id <= 6; ++id)
    harness.add(id, random_tokens(random, 5 + static_cast<int>(id)), 4);
  harness.run();
  for (RequestId id = 1; id <= 6; ++id) {
    harness.expect_answer(id, 4);
    EXPECT_EQ(harness.end(id).reason, FinishReason::kLength);
    EXPECT_EQ(harness.stats(id).output_tokens, 4);
  }
}

TEST(Scheduler, PlansTheNextStepOnATokenThatIsNotKnownYet) {
  SchedulerHarness harness(small_config(), {});
  harness.add(1, {1, 2, 3}, 3);
  const StepPlan first = harness.step();
  ASSERT_EQ(harness.executor().in_flight(), 1);
  EXPECT_TRUE(harness.output(1).empty());
  const StepPlan second = harness.step();
  ASSERT_EQ(second.batch.size(), 1u);
  EXPECT_EQ(second.batch[0].first, 3);
  EXPECT_EQ(second.batch[0].count, 1);
  EXPECT_TRUE(second.start.empty());
  EXPECT_EQ(first.start[0].tokens.size(), 3u);
}

TEST(Scheduler, NeverExceedsTheTokenBudgetAndServesRunningRequestsFirst) {
  SchedulerConfig config = small_config();
  config.max_num_batched_tokens = 6;
  SchedulerHarness harness(config, {.base_blocks = 30});
  Random random(1);
  harness.add(1, random_tokens(random, 4), 8);
  harness.step();
  harness.add(2, random_tokens(random, 20), 2);
  for (int i = 0; i < 4; ++i) {
    const StepPlan plan = harness.step();
    EXPECT_LE(plan.num_tokens(), 6);
    ASSERT_EQ(plan.batch.size(), 2u);
    EXPECT_EQ(plan.batch[0].count, 1);
    EXPECT_EQ(plan.batch[1].count, 5);
    EXPECT_EQ(plan.batch[1].sample, i == 3);
  }
  harness.run();
  harness.expect_answer(1, 8);
  harness.expect_answer(2, 2);
}

// The older one comes back with all its tokens to compute; the others go on meanwhile.
TEST(Scheduler, ALongPromptDoesNotHoldUpThoseWhoNeedOneToken) {
  SchedulerConfig config = small_config();
  config.max_num_batched_tokens = 8;
  SchedulerHarness harness(config, {.base_blocks = 40, .block_tokens = 4});
  Random random(1);
  for (RequestId id = 2; id <= 4; ++id) harness.add(id, random_tokens(random, 2), 30);
  harness.step();
  RequestInput older;
  older.id = 1;
  older.prompt = random_tokens(random, 30);
  older.sampling.max_tokens = 2;
  older.sampling.ignore_eos = true;
  older.arrival = -1;
  harness.add(older);
  for (int i = 0; i < 6; ++i) {
    const StepPlan plan = harness.step();
    EXPECT_EQ(plan.batch.size(), 4u);
    EXPECT_EQ(plan.num_tokens(), 8);
  }
  harness.run();
  harness.expect_answer(1, 2);
}

TEST(Scheduler, AStopTokenEndsTheRequestAndDropsTheSurplusRow) {
  const std::vector<TokenId> prompt = {5, 6, 7, 8, 9};
  const std::vector<TokenId> output = expected_output(prompt, 3);
  SchedulerConfig config = small_config();
  config.eos_token_ids = {output[2]};
  SchedulerHarness harness(config, {});
  RequestInput input;
  input.id = 1;
  input.prompt = prompt;
  input.sampling.max_tokens = 10;
  harness.add(input);
  input.id = 2;
  input.sampling.ignore_eos = true;
  harness.add(input);
  input.id = 3;
  input.sampling.ignore_eos = false;
  input.sampling.min_tokens = 4;
  harness.add(input);
  harness.run();
  harness.expect_answer(1, 3);
  EXPECT_EQ(harness.end(1).reason, FinishReason::kStop);
  harness.expect_answer(2, 10);
  harness.expect_answer(3, 10);
}

TEST(Scheduler, RefusesWhatCanNeverRunAndSaysWhy) {
  SchedulerConfig config = small_config();
  config.max_model_len = 40;
  config.max_waiting = 1;
  SchedulerHarness harness(config, {.base_blocks = 8, .block_tokens = 4});
  EXPECT_THAT(harness.add(1, {}, 4).value_or(""), HasSubstr("empty"));
  EXPECT_THAT(harness.add(1, {1}, 0).value_or(""), HasSubstr("max_tokens"));
  EXPECT_THAT(harness.add(1, std::vector<TokenId>(35, 1), 6).value_or(""), HasSubstr("40"));
  // 32 tokens of cache; the last output token needs none.
  EXPECT_THAT(harness.add(1, std::vector<TokenId>(30, 1), 4).value_or(""), HasSubstr("32 tokens"));
  EXPECT_EQ(harness.add(1, std::vector<TokenId>(30, 1), 3), std::nullopt);
  EXPECT_THAT(harness.add(2, {1}, 1).value_or(""), HasSubstr("waiting already"));
  EXPECT_THAT(harness.add(1, {1}, 1).value_or(""), HasSubstr("exists"));
  harness.run();
  harness.expect_answer(1, 3);
}

TEST(Scheduler, CountsTheLargestPoolThatTheBoundaryCanReach) {
  SchedulerConfig config = small_config();
  const TestLayoutOptions layout{
      .base_blocks = 4, .group_bytes = 3072, .max_groups_out_per_layer = 4};
  SchedulerHarness moving(config, layout);
  const int most = moving.layout().max_blocks() * 4;
  ASSERT_GT(most, 16);
  EXPECT_EQ(moving.add(1, std::vector<TokenId>(static_cast<size_t>(most), 1), 1), std::nullopt);
  moving.run();
  moving.expect_answer(1, 1);
  config.max_groups_out = 0;
  SchedulerHarness fixed(config, layout);
  EXPECT_NE(fixed.add(1, std::vector<TokenId>(static_cast<size_t>(most), 1), 1), std::nullopt);
}

// Growing requests outgrow the pool: the latest gives way, again and again, and the oldest never.
TEST(Scheduler, PreemptsTheLatestAndTheOldestMakesProgress) {
  SchedulerConfig config = small_config();
  config.admission = AdmissionRule::kFirstChunk;
  SchedulerHarness harness(config, {.base_blocks = 10, .block_tokens = 4});
  Random random(1);
  for (RequestId id = 1; id <= 4; ++id) {
    harness.add(id, random_tokens(random, 6), 26);
    harness.now() += 10;
  }
  harness.run();
  for (RequestId id = 1; id <= 4; ++id) harness.expect_answer(id, 26);
  EXPECT_EQ(harness.stats(1).preemptions, 0);
  EXPECT_GT(harness.stats(4).preemptions, 0);
  EXPECT_LT(harness.stats(1).finished, harness.stats(4).finished);
}

TEST(Scheduler, PriorityRunsFirstAndItsLastIsTheVictim) {
  SchedulerConfig config = small_config();
  config.scheduling = SchedulingPolicy::kPriority;
  config.max_num_seqs = 2;
  SchedulerHarness harness(config, {.base_blocks = 10, .block_tokens = 4});
  Random random(1);
  for (RequestId id = 1; id <= 3; ++id) {
    RequestInput input;
    input.id = id;
    input.prompt = random_tokens(random, 8);
    input.sampling.max_tokens = 24;
    input.priority = 4 - static_cast<int>(id);  // the last to come is the most important
    input.arrival = static_cast<double>(id);
    harness.add(input);
  }
  harness.run();
  EXPECT_EQ(harness.stats(3).preemptions, 0);
  EXPECT_LT(harness.stats(3).finished, harness.stats(2).finished);
  EXPECT_LT(harness.stats(2).finished, harness.stats(1).finished);
  EXPECT_GT(harness.stats(2).preemptions, 0);
}

TEST(Scheduler, WaitingRequestsNeverPreemptRunningOnes) {
  SchedulerHarness harness(small_config(), {.base_blocks = 10, .block_tokens = 4});
  Random random(1);
  harness.add(1, random_tokens(random, 20), 18);  // nine blocks and a half in the end
  harness.step();
  for (RequestId id = 2; id <= 4; ++id) harness.add(id, random_tokens(random, 24), 2);
  harness.run();
  EXPECT_EQ(harness.scheduler().stats().preemptions, 0u);
  for (RequestId id = 2; id <= 4; ++id) {
    EXPECT_GE(harness.stats(id).first_scheduled, harness.stats(1).finished);
  }
}

TEST(Scheduler, AdmissionByWholePromptOrByFirstChunk) {
  for (const AdmissionRule rule : {AdmissionRule::kWholePrompt, AdmissionRule::kFirstChunk}) {
    SchedulerConfig config = small_config();
    config.admission = rule;
    config.max_num_batched_tokens = 8;
    SchedulerHarness harness(config, {.base_blocks = 10, .block_tokens = 4});
    Random random(1);
    harness.add(1, random_tokens(random, 6), 24);
    harness.step();
    harness.add(2, random_tokens(random, 36), 2);
    harness.step();
    EXPECT_EQ(harness.scheduler().stats().running, rule == AdmissionRule::kFirstChunk ? 2 : 1);
    harness.run();
    harness.expect_answer(1, 24);
    harness.expect_answer(2, 2);
  }
}

// A request that does not fit lets some pass, and only so many.
TEST(Scheduler, ABigRequestIsOvertakenAtMostSoOften) {
  SchedulerConfig config = small_config();
  config.max_num_seqs = 3;
  config.max_overtakes = 5;
  config.max_overtaken_for = 1e12;
  SchedulerHarness harness(config, {.base_blocks = 10, .block_tokens = 4});
  Random random(1);
  harness.add(1, random_tokens(random, 6), 30);
  harness.step();
  harness.add(2, random_tokens(random, 38), 2);  // needs the whole pool
  RequestId next = 3;
  for (; next < 20; ++next) harness.add(next, random_tokens(random, 4), 3);
  harness.run();
  int before = 0;
  for (RequestId id = 3; id < next; ++id) {
    harness.expect_answer(id, 3);
    before += harness.stats(id).first_scheduled < harness.stats(2).first_scheduled;
  }
  harness.expect_answer(2, 2);
  EXPECT_EQ(before, 5);
}

TEST(Scheduler, ABigRequestIsOvertakenNoLongerThanSo) {
  SchedulerConfig config = small_config();
  config.max_overtakes = 1 << 20;
  config.max_overtaken_for = 30e3;
  SchedulerHarness harness(config, {.base_blocks = 10, .block_tokens = 4});
  Random random(1);
  harness.add(1, random_tokens(random, 6), 4);
  harness.step();
  harness.add(2, random_tokens(random, 38), 2);
  const Micros added = harness.now();
  RequestId next = 3;
  while (!harness.finished(2)) {
    ASSERT_LT(next, 500u);
    harness.add(next++, random_tokens(random, 4), 3);
    harness.step();
  }
  harness.run();
  for (RequestId id = 3; id < next; ++id) {
    if (harness.stats(id).first_scheduled > harness.stats(2).first_scheduled) continue;
    EXPECT_LE(harness.stats(id).first_scheduled, added + 30e3 + 2e3) << id;
  }
  EXPECT_EQ(harness.scheduler().stats().preemptions, 0u);
}

TEST(Scheduler, CancelsAtAnyMoment) {
  SchedulerConfig config = small_config();
  config.max_num_seqs = 1;
  for (int steps = 0; steps < 12; ++steps) {
    SchedulerHarness harness(config, {.base_blocks = 10, .block_tokens = 4});
    harness.add(1, {1, 2, 3, 4, 5}, 6);
    harness.add(2, {1, 2, 3, 4, 6}, 6);
    for (int i = 0; i < steps; ++i) harness.step();
    harness.cancel(1);
    harness.cancel(77);
    harness.run();
    ASSERT_TRUE(harness.finished(1));
    EXPECT_EQ(harness.end(1).reason == FinishReason::kLength, harness.output(1).size() == 6u);
    harness.expect_right_tokens(1);
    harness.expect_answer(2, 6);
    EXPECT_EQ(harness.scheduler().stats().referenced_blocks, 0);
  }
}

TEST(Scheduler, ADeadlineEndsARequestWhereverItIs) {
  SchedulerConfig config = small_config();
  config.max_num_seqs = 1;
  SchedulerHarness harness(config, {.base_blocks = 20, .block_tokens = 4});
  for (RequestId id = 1; id <= 3; ++id) {
    RequestInput input;
    input.id = id;
    input.prompt = {1, 2, 3, static_cast<TokenId>(id)};
    input.sampling.max_tokens = 40;
    input.deadline = id == 3 ? 1e9 : 10e3 * static_cast<double>(id);
    harness.add(input);
  }
  EXPECT_EQ(harness.scheduler().next_wakeup(), 10e3);
  harness.run();
  EXPECT_EQ(harness.end(1).reason, FinishReason::kDeadline);
  EXPECT_GT(harness.output(1).size(), 2u);
  EXPECT_EQ(harness.end(2).reason, FinishReason::kDeadline);
  EXPECT_NEAR(harness.stats(2).finished, 20e3, 2e3);
  harness.expect_answer(3, 40);
}

TEST(Scheduler, HoldsNewSessionsAsThePolicySaysButNotForNobodysSake) {
  auto policy = std::make_unique<ScriptedPolicy>();
  policy->on_hold = [](SessionId session) { return session == 2; };
  SchedulerHarness harness(small_config(), {.base_blocks = 20}, std::move(policy));
  for (RequestId id = 1; id <= 3; ++id) {
    RequestInput input;
    input.id = id;
    input.prompt = {1, 2, static_cast<TokenId>(id)};
    input.reuse.session = id;
    input.sampling.max_tokens = 6;
    harness.add(input);
  }
  harness.step();
  EXPECT_EQ(harness.scheduler().stats().running, 2);
  EXPECT_NEAR(harness.scheduler().next_wakeup(), harness.now() + SchedulerConfig().hold_recheck,
              2e3);
  harness.run();
  EXPECT_GE(harness.stats(2).first_scheduled, harness.stats(1).finished);
  harness.expect_answer(2, 6);
}

TEST(Scheduler, NaNFailsTheRequestAloneAndItsContentIsNotShared) {
  SchedulerConfig config = small_config();
  SchedulerHarness harness(config, {.base_blocks = 20, .block_tokens = 4}, nullptr,
                           {.invalid_rate = 1});
  harness.add(1, {1, 2, 3, 4, 5, 6, 7, 8, 9}, 4);
  harness.run();
  EXPECT_EQ(harness.end(1).reason, FinishReason::kError);
  EXPECT_THAT(harness.end(1).error, HasSubstr("NaN"));
  EXPECT_EQ(harness.scheduler().stats().cached_blocks, 0);
  harness.add(2, {1, 2, 3, 4, 5, 6, 7, 8, 9}, 4);
  harness.run();
  EXPECT_EQ(harness.stats(2).cached_tokens, 0);
}

TEST(Scheduler, AFailedStepPutsEverybodyBackAndNothingIsLost) {
  for (int steps = 1; steps < 9; ++steps) {
    SchedulerHarness harness(small_config(), {.base_blocks = 20, .block_tokens = 4});
    Random random(1);
    for (RequestId id = 1; id <= 3; ++id) harness.add(id, random_tokens(random, 9), 8);
    for (int i = 0; i < steps; ++i) harness.step();
    harness.executor().fail_next_step();
    harness.run();
    for (RequestId id = 1; id <= 3; ++id) {
      harness.expect_answer(id, 8);
      EXPECT_EQ(harness.stats(id).preemptions, 0);
    }
    EXPECT_GE(harness.scheduler().stats().failed_steps, 1u);
  }
}

TEST(Scheduler, StatsTellARequestsLife) {
  SchedulerConfig config = small_config();
  config.max_num_seqs = 1;
  SchedulerHarness harness(config, {.base_blocks = 20, .block_tokens = 4});
  harness.add(1, {1, 2, 3, 4, 5, 6, 7, 8, 9}, 4);
  harness.add(2, {1, 2, 3, 4, 5, 6, 7, 8, 10}, 4);
  harness.run();
  const RequestStats& first = harness.stats(1);
  const RequestStats& second = harness.stats(2);
  EXPECT_EQ(first.queued, first.first_scheduled - first.arrival);
  EXPECT_GT(second.queued, 5000);
  EXPECT_EQ(second.cached_tokens, 8);
  EXPECT_GT(first.first_token, first.first_scheduled);
  EXPECT_GT(first.finished, first.first_token);
  const SchedulerStats stats = harness.scheduler().stats();
  EXPECT_EQ(stats.queried_tokens, 18u);
  EXPECT_EQ(stats.hit_tokens, 8u);
  EXPECT_DOUBLE_EQ(stats.hit_rate, 8.0 / 18.0);
}

}  // namespace
}  // namespace vamp
