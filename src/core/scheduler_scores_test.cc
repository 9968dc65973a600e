// Log-probabilities of a prompt's tokens, seen through the scheduler. Preempted and lost prompts
// are among SchedulerRandom's lives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/scheduler_test_util.h"

namespace vamp {
namespace {

RequestInput scored_request(RequestId id, std::vector<TokenId> prompt, int max_tokens = 1) {
  RequestInput input;
  input.id = id;
  input.prompt = std::move(prompt);
  input.sampling.max_tokens = max_tokens;
  input.sampling.ignore_eos = true;
  input.sampling.prompt_logprobs = 0;
  return input;
}

TEST(PromptScores, ComeInOrderAndAreNotTakenFromTheCache) {
  SchedulerHarness harness(small_scheduler(), {.base_blocks = 30, .block_tokens = 4});
  cost_of(harness, 1, iota(0, 20));
  const int64_t before = harness.executor().computed_tokens();
  harness.add(scored_request(2, iota(0, 20), 6));
  harness.run();
  harness.expect_right_scores(2);
  harness.expect_answer(2, 6);
  EXPECT_EQ(harness.stats(2).cached_tokens, 0);
  EXPECT_EQ(harness.executor().computed_tokens() - before, 20 + 5);
  // Its own is there for others as ever.
  EXPECT_EQ(cost_of(harness, 3, iota(0, 20)), 4);
}

TEST(PromptScores, APromptOfOneTokenHasNone) {
  SchedulerHarness harness(small_scheduler(), {.base_blocks = 30, .block_tokens = 4});
  harness.add(scored_request(1, {5}));
  harness.run();
  harness.expect_answer(1, 1);
  EXPECT_EQ(harness.scored(1), 0u);
}

// Rows of logits are as many as request slots: the prompt takes those that nobody runs in.
TEST(PromptScores, OthersGoOnEveryStep) {
  SchedulerHarness harness(small_scheduler(), {.base_blocks = 60, .block_tokens = 4});
  harness.add(1, iota(100, 5), 30);
  harness.add(2, iota(200, 5), 30);
  harness.step();
  harness.step();
  harness.add(scored_request(3, iota(0, 20)));
  harness.step();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(harness.step().num_tokens(), 2 + 2);
  harness.add(4, iota(300, 5), 3);  // there is a slot, but its row is in use
  for (int i = 0; i < 3; ++i) EXPECT_EQ(harness.step().num_tokens(), 2 + 2);
  EXPECT_FALSE(harness.finished(3));
  harness.run();
  harness.expect_right_scores(3);
  for (const auto& [id, tokens] : {std::pair(1, 30), {2, 30}, {3, 1}, {4, 3}})
    harness.expect_answer(static_cast<RequestId>(id), tokens);
}

TEST(PromptScores, LogitsThatAreNoNumbersFailTheRequest) {
  CheckingExecutorOptions executor;
  executor.invalid_rate = 1;
  SchedulerHarness harness(small_scheduler(), {.base_blocks = 30, .block_tokens = 4}, nullptr,
                           executor);
  harness.add(scored_request(1, iota(0, 10)));
  harness.run();
  EXPECT_EQ(harness.end(1).reason, FinishReason::kError);
  EXPECT_EQ(harness.scheduler().stats().cached_blocks, 0);
}

}  // namespace
}  // namespace vamp
