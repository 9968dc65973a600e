#include "exec/plan_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <deque>

#include "base/error.h"
#include "exec/executor_test_support.h"
#include "memory/host_virtual_memory.h"

namespace vamp {
namespace {

using test::golden_config;
using ::testing::HasSubstr;

// The host copy of the experts, whose k-th read from arm() on fails.
class FailingExperts final : public HostExperts {
 public:
  explicit FailingExperts(const HostExperts& inner) : inner_(inner) {}
  void arm(int k) { left_ = k; }

  void copy(int moe_layer, int first, int count, std::byte* to) const override {
    if (left_ > 0 && --left_ == 0) throw Error("experts can't be read");
    inner_.copy(moe_layer, first, count, to);
  }

 private:
  const HostExperts& inner_;
  mutable std::atomic<int> left_ = 0;
};

// A PlanRunner as an executor without a thread.
class DirectExecutor final : public Executor {
 public:
  explicit DirectExecutor(const ExecutorConfig& config)
      : ops_(make_ops(config)),
        model_(config, *ops_, {}),
        experts_(model_.experts()),
        memory_({.granularity = model_.layout().page_bytes}),
        runner_(config, model_, experts_, memory_, *ops_, clock_) {}

  void submit(StepPlan plan) override { results_.push_back(runner_.run(plan)); }
  StepResult wait() override {
    StepResult result = std::move(results_.front());
    results_.pop_front();
    return result;
  }
  int in_flight() const override { return static_cast<int>(results_.size()); }
  StepResult run(const StepPlan& plan) { return runner_.run(plan); }

  const LoadedModel& model() const { return model_; }
  const MemoryLayout& layout() const { return model_.layout(); }
  const HbmPartition& partition() const { return runner_.partition(); }
  FailingExperts& experts() { return experts_; }

 private:
  RealClock clock_;
  std::unique_ptr<Ops> ops_;
  LoadedModel model_;
  FailingExperts experts_;
  HostVirtualMemory memory_;
  PlanRunner runner_;
  std::deque<StepResult> results_;
};

StepPlan prefill(StepId step, const std::vector<TokenId>& tokens) {
  StepPlan plan;
  plan.step = step;
  plan.reset = true;
  StartRequest start;
  start.tokens = tokens;
  start.prompt_tokens = static_cast<int>(tokens.size());
  for (int b = 0; 4 * b < start.prompt_tokens + 4; ++b) start.blocks.push_back(b);
  plan.start = {start};
  plan.batch = {{0, 0, start.prompt_tokens, true, {}}};
  return plan;
}

BoundaryMove move_to(const MemoryLayout& layout, int groups_out) {
  BoundaryMove move;
  move.groups_out = groups_out;
  move.order_version = layout.order.version;
  for (int s = 0; s < layout.pool_slots(groups_out); ++s) move.map_slots.push_back(s);
  return move;
}

// All that the boundary brought back is what the checkpoint holds.
void expect_right_experts(const DirectExecutor& executor) {
  const MemoryLayout& layout = executor.layout();
  const ExpertStore& store = executor.partition().experts();
  std::vector<std::byte> expert(layout.shard_bytes());
  for (int m = 0; m < layout.moe_layers; ++m) {
    for (int e = 0; e < store.first_given_up_expert(m); ++e) {
      executor.model().experts().copy(m, e, 1, expert.data());
      EXPECT_EQ(std::memcmp(expert.data(), store.expert(m, e), expert.size()), 0);
    }
  }
}

TEST(PlanRunner, AfterAnyScheduleFramesAndExpertsAreInOrder) {
  const ExecutorConfig config = golden_config("mixtral", 75);
  for (uint64_t seed = 0; seed < 3; ++seed) {
    DirectExecutor executor(config);
    ScheduleOptions options;
    options.move_boundary = 0.6;
    RandomSchedule schedule(executor, executor.layout(), options, seed);
    test::add_all(schedule, test::make_prompts(4, 512, seed), 8);
    while (schedule.step()) executor.partition().check_invariants();
    EXPECT_GT(schedule.counts().boundary_moves, 3);
    expect_right_experts(executor);
  }
}

TEST(PlanRunner, CountsWhatItStages) {
  DirectExecutor executor(golden_config("mixtral", 75));
  const MemoryLayout& layout = executor.layout();
  StepPlan plan = prefill(1, {1, 2, 3, 4, 5, 6, 7});
  StepResult result = executor.run(plan);
  EXPECT_EQ(result.staging.staged_bytes, 0u);
  EXPECT_EQ(result.staging.used, StagingMode::kAuto);

  plan.boundary = move_to(layout, layout.max_groups_out());
  plan.staging = StagingMode::kWholeRegion;
  result = executor.run(plan);
  const size_t region = layout.group_bytes() * layout.max_groups_out();
  EXPECT_EQ(result.staging.staged_bytes, region);
  EXPECT_EQ(result.staging.used, StagingMode::kWholeRegion);
  EXPECT_GT(result.boundary_us, 0);
  const size_t activated = result.staging.activated_bytes;
  EXPECT_GT(activated, 0u);
  EXPECT_LT(activated, region);

  plan.boundary.reset();
  plan.staging = StagingMode::kActivated;
  result = executor.run(plan);
  EXPECT_EQ(result.staging.staged_bytes, activated);
  EXPECT_EQ(result.staging.activated_bytes, activated);
  EXPECT_EQ(result.staging.used, StagingMode::kActivated);
}

TEST(PlanRunner, ALostStepSkipsPlansUntilReset) {
  DirectExecutor executor(golden_config("mixtral", 75));
  const MemoryLayout& layout = executor.layout();
  StepPlan plan = prefill(1, {1, 2, 3, 4, 5, 6, 7});
  const TokenId expected = executor.run(plan).tokens.at(0).token;

  for (const StagingMode mode : {StagingMode::kWholeRegion, StagingMode::kActivated}) {
    plan.boundary = move_to(layout, layout.max_groups_out());
    plan.staging = mode;
    plan.move_blocks = {{1, 20}};
    std::vector<std::byte> moved(layout.block_bytes);
    for (size_t i = 0; i < moved.size(); ++i) moved[i] = std::byte(i % 251);
    std::memcpy(executor.partition().kv().block(1), moved.data(), moved.size());
    executor.experts().arm(2);
    const StepResult lost = executor.run(plan);
    EXPECT_FALSE(lost.executed);
    EXPECT_THAT(lost.failure, HasSubstr("experts can't be read"));
    EXPECT_TRUE(lost.tokens.empty());
    // It did not move either, and a block that the plan moved and wrote over is as it was.
    EXPECT_EQ(executor.partition().groups_out(), layout.min_groups_out);
    EXPECT_EQ(std::memcmp(executor.partition().kv().block(1), moved.data(), moved.size()), 0);

    StepPlan next;
    next.step = 2;
    next.batch = {{0, 7, 1, true, {}}};
    EXPECT_FALSE(executor.run(next).executed);

    plan.boundary.reset();
    plan.move_blocks.clear();
    const StepResult again = executor.run(plan);
    EXPECT_TRUE(again.executed) << again.failure;
    EXPECT_EQ(again.tokens.at(0).token, expected);
  }
}

// A read of the host copy that fails, at every one of a short run: steps are lost, tokens are not.
TEST(PlanRunner, AFailedReadOfExpertsLosesAStepAndNothingElse) {
  const ExecutorConfig config = golden_config("mixtral", 75);
  const test::Tokens prompts = test::make_prompts(3, 512, 8);
  const test::Tokens expected = test::run_plainly(config, prompts, 5);
#ifdef VAMP_SANITIZED
  constexpr int kStride = 4;
#else
  constexpr int kStride = 3;
#endif
  int lost = 0;
  for (int k = 1;; k += kStride) {
    DirectExecutor executor(config);
    ScheduleOptions options;
    options.move_boundary = 0.5;
    options.random_staging = true;
    options.lag = 0;
    RandomSchedule schedule(executor, executor.layout(), options, 2);
    test::add_all(schedule, prompts, 5);
    executor.experts().arm(k);
    ASSERT_EQ(schedule.run(), expected) << "failure at read " << k;
    executor.partition().check_invariants();
    expect_right_experts(executor);
    if (schedule.counts().lost == 0) break;
    ++lost;
  }
  EXPECT_GT(lost, 3);
}

}  // namespace
}  // namespace vamp
