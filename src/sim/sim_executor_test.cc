#include "sim/sim_executor.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "sim/model_shapes.h"

namespace vamp {
namespace {

class SimExecutorTest : public testing::Test {
 protected:
  SimExecutorTest() {
    MemoryLayoutOptions options;
    options.device_bytes = 70 * kGiB;
    options.max_offload_percent = 20;
    layout_ = make_memory_layout(model_, options);
    config_.machine = machine_profile("h200");
  }
  SimExecutor make() { return SimExecutor(model_, layout_, config_, clock_); }

  static StepPlan start_plan(StepId step, RequestSlot slot, int prompt, uint64_t seed = 0) {
    StepPlan plan;
    plan.step = step;
    StartRequest start;
    start.slot = slot;
    start.tokens.assign(prompt, 7);
    start.prompt_tokens = prompt;
    start.sampling.seed = seed;
    plan.start.push_back(start);
    plan.batch.push_back(
        {.slot = slot, .first = 0, .count = prompt, .sample = true, .new_blocks = {}});
    return plan;
  }
  static StepPlan decode_plan(StepId step, RequestSlot slot, int position) {
    StepPlan plan;
    plan.step = step;
    plan.batch.push_back(
        {.slot = slot, .first = position, .count = 1, .sample = true, .new_blocks = {}});
    return plan;
  }

  ModelConfig model_ = qwen3_30b_a3b();
  MemoryLayout layout_;
  SimConfig config_;
  VirtualClock clock_;
};

TEST_F(SimExecutorTest, TwoPlansInFlightRunOneAfterTheOther) {
  SimExecutor executor = make();
  executor.submit(start_plan(1, 0, 1000));
  EXPECT_EQ(clock_.now(), 0);  // submitting takes no time
  executor.submit(decode_plan(2, 0, 1000));
  EXPECT_EQ(executor.in_flight(), 2);
  EXPECT_THROW(executor.submit(decode_plan(3, 0, 1001)), InvariantError);
  const StepResult first = executor.wait();
  EXPECT_EQ(first.step, 1u);
  EXPECT_EQ(clock_.now(), first.end);
  const StepResult second = executor.wait();
  EXPECT_EQ(second.start, first.end);
  EXPECT_EQ(clock_.now(), second.end);
  EXPECT_EQ(second.tokens.size(), 1u);
}

// Allows one token after the other, from 30 on.
class CountingGrammar final : public TokenGrammar {
 public:
  std::unique_ptr<TokenMatcher> start(std::span<const TokenId>) const override {
    return std::make_unique<Matcher>();
  }

 private:
  struct Matcher final : TokenMatcher {
    void fill(std::span<uint32_t> allowed) override {
      for (uint32_t& word : allowed) word = 0;
      allowed[static_cast<size_t>(next) / 32] = 1u << (next % 32);
    }
    bool accept(TokenId token) override { return token == next ? ++next, true : false; }
    TokenId next = 30;
  };
};

TEST_F(SimExecutorTest, GrammarsAreFollowed) {
  SimExecutor executor = make();
  StepPlan plan = start_plan(1, 0, 100);
  plan.start[0].sampling.grammar = std::make_shared<CountingGrammar>();
  executor.submit(plan);
  EXPECT_EQ(executor.wait().tokens[0].token, 30);
  for (int i = 1; i < 4; ++i) {
    executor.submit(decode_plan(1 + static_cast<StepId>(i), 0, 99 + i));
    EXPECT_EQ(executor.wait().tokens[0].token, 30 + i);
  }
  // Restarted behind three tokens of its output.
  plan = start_plan(5, 1, 103);
  plan.start[0].prompt_tokens = 100;
  std::copy_n(std::vector<TokenId>{30, 31, 32}.begin(), 3, plan.start[0].tokens.begin() + 100);
  plan.start[0].sampling.grammar = std::make_shared<CountingGrammar>();
  executor.submit(plan);
  EXPECT_EQ(executor.wait().tokens[0].token, 33);
}

TEST_F(SimExecutorTest, TokensDependOnlyOnTheRequest) {
  SimExecutor executor = make();
  executor.submit(start_plan(1, 0, 100));
  const TokenId alone = executor.wait().tokens[0].token;
  // Another slot, another batch, chunked, and restarted behind its first output token.
  StepPlan plan = start_plan(2, 5, 100);
  plan.batch[0].count = 60;
  plan.batch[0].sample = false;
  executor.submit(plan);
  EXPECT_TRUE(executor.wait().tokens.empty());
  plan = decode_plan(3, 0, 100);
  plan.batch.push_back({.slot = 5, .first = 60, .count = 40, .sample = true, .new_blocks = {}});
  executor.submit(plan);
  const StepResult result = executor.wait();
  EXPECT_EQ(result.tokens[1].token, alone);
  plan = start_plan(4, 6, 101);
  plan.start[0].prompt_tokens = 100;
  executor.submit(plan);
  EXPECT_EQ(executor.wait().tokens[0].token, result.tokens[0].token);
  executor.submit(start_plan(5, 7, 100, 99));
  EXPECT_NE(executor.wait().tokens[0].token, alone);
}

TEST_F(SimExecutorTest, CopiesRunBesideStepsAndAreReportedOnce) {
  SimExecutor executor = make();
  StepPlan plan = start_plan(1, 0, 2000);
  for (int b = 0; b < 2000; ++b) plan.promote.push_back({b, b});
  executor.submit(plan);
  size_t reported = executor.wait().promoted.size();
  EXPECT_GT(reported, 0u);
  EXPECT_LT(reported, 2000u);
  int position = 2000;
  for (StepId step = 2; reported < 2000; ++step) {
    executor.submit(decode_plan(step, 0, position++));
    const StepResult result = executor.wait();
    reported += result.promoted.size();
    ASSERT_LT(step, 100u);
  }
  EXPECT_EQ(reported, 2000u);
  const double bytes = 2000.0 * static_cast<double>(layout_.block_bytes);
  EXPECT_NEAR(clock_.now(), bytes / 55e3, 5e3);
}

TEST_F(SimExecutorTest, AwaitingCopiesEndsWithTheFirst) {
  SimExecutor executor = make();
  StepPlan plan;
  plan.step = 1;
  plan.demote = {{0, 0}, {1, 1}};
  executor.submit(plan);
  EXPECT_TRUE(executor.wait().demoted.empty());
  for (StepId step = 2; step < 4; ++step) {
    StepPlan await;
    await.step = step;
    await.await_copies = true;
    executor.submit(await);
    EXPECT_EQ(executor.wait().demoted.size(), 1u);
  }
  EXPECT_NEAR(clock_.now(), 2.0 * static_cast<double>(layout_.block_bytes) / 55e3, 1);
  StepPlan await;
  await.step = 4;
  await.await_copies = true;
  EXPECT_THROW(executor.submit(await), InvariantError);
}

TEST_F(SimExecutorTest, BoundaryMovesTakeTimeByHandleAndRestoringCopies) {
  SimExecutor executor = make();
  StepPlan plan;
  plan.step = 1;
  plan.boundary = BoundaryMove{.groups_out = 8, .map_slots = {}, .unmap_slots = {}};
  executor.submit(plan);
  EXPECT_DOUBLE_EQ(executor.wait().boundary_us, 8 * 74);
  plan.step = 2;
  plan.boundary->groups_out = 4;
  executor.submit(plan);
  EXPECT_DOUBLE_EQ(executor.wait().boundary_us,
                   4 * 74 + 4.0 * static_cast<double>(layout_.group_bytes()) / 55e3);
}

TEST_F(SimExecutorTest, LostPlansStayLostUntilReset) {
  config_.failure_rate = 1;
  SimExecutor executor = make();
  executor.submit(start_plan(1, 0, 10));
  EXPECT_FALSE(executor.wait().executed);
  executor.submit(decode_plan(2, 0, 10));
  EXPECT_FALSE(executor.wait().executed);
  StepPlan plan = start_plan(3, 0, 10);
  plan.reset = true;
  executor.submit(plan);
  EXPECT_TRUE(executor.wait().executed);
}

TEST_F(SimExecutorTest, ExpertCountsFollowTheRouting) {
  config_.expert_count_interval = 4;
  SimExecutor executor = make();
  executor.submit(start_plan(1, 0, 1000));
  EXPECT_TRUE(executor.wait().expert_counts.empty());
  std::vector<uint32_t> counts;
  for (StepId step = 2; step <= 4; ++step) {
    executor.submit(decode_plan(step, 0, 998 + static_cast<int>(step)));
    counts = executor.wait().expert_counts;
  }
  ASSERT_EQ(counts.size(), 48u * 128);
  EXPECT_EQ(counts[0], 63u);  // 1,003 tokens, 8 of 128 each
}

}  // namespace
}  // namespace vamp
