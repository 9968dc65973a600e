#include "exec/cpu_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/test_seed.h"
#include "exec/executor_test_support.h"
#include "memory/host_virtual_memory.h"
#include "memory/virtual_memory_decorators.h"

namespace vamp {
namespace {

using test::add_all;
using test::golden_config;
using test::make_prompts;
using test::run_plainly;
using test::single;
using test::Tokens;
using ::testing::HasSubstr;

#ifdef VAMP_SANITIZED
constexpr int kSeeds = 3, kFailureStride = 9;
#else
constexpr int kSeeds = 12, kFailureStride = 1;
#endif

// Tokens are those of the plain run whatever the schedule does, at every boundary position.
class AnySchedule : public testing::TestWithParam<const char*> {};

TEST_P(AnySchedule, GivesTheTokensOfThePlainRun) {
  const ExecutorConfig base = golden_config(GetParam(), 50);
  const Tokens prompts = make_prompts(9, 512, 1);
  const Tokens expected = run_plainly(base, prompts, 12);
  RandomSchedule::Counts sum;
  const uint64_t first = seed_of_soak().value_or(0);
  for (uint64_t seed = first; seed < first + kSeeds; ++seed) {
    ExecutorConfig config = base;
    config.threads = 1 + static_cast<int>(seed % 2);
    ScheduleOptions options;
    options.lag = static_cast<int>(seed % 3 != 0);
    options.random_staging = seed % 2 == 0;
    options.max_running = 1 + static_cast<int>(seed % 6);
    RealClock clock;
    HostVirtualMemory memory;
    ShadowVirtualMemory shadow(memory);
    config.kv_offloading_size =
        40 * plan_memory(config, load_model_config(config.model), *make_ops(config)).block_bytes;
    CpuExecutor executor(config, clock, {}, &shadow);
    options.host_blocks = executor.host_blocks();
    RandomSchedule schedule(executor, executor.layout(), options, seed);
    add_all(schedule, prompts, 12);
    ASSERT_EQ(schedule.run(), expected) << "seed " << seed;
    const RandomSchedule::Counts& c = schedule.counts();
    sum.boundary_moves += c.boundary_moves;
    sum.block_moves += c.block_moves;
    sum.preemptions += c.preemptions;
    sum.hits += c.hits;
    sum.demoted += c.demoted;
    sum.promoted += c.promoted;
  }
  if (seed_of_soak()) return;
  for (int count : {sum.boundary_moves, sum.block_moves, sum.hits, sum.demoted, sum.promoted}) {
    EXPECT_GT(count, kSeeds);
  }
  EXPECT_GT(sum.preemptions, 0);
}

INSTANTIATE_TEST_SUITE_P(Golden, AnySchedule,
                         testing::Values("mixtral", "qwen3_moe", "qwen3_moe-dense-layers",
                                         "qwen3_moe-yarn-bias"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(CpuExecutor, AModelThatDoesNotFitStartsWithGroupsGivenUp) {
  ExecutorConfig config = golden_config("mixtral", 75);
  Tokens prompts = make_prompts(5, 512, 2);
  for (auto& [id, prompt] : prompts) prompt.resize(std::min<size_t>(prompt.size(), 20));
  const Tokens expected = run_plainly(config, prompts, 10);
  RealClock clock;
  {
    CpuExecutor executor(config, clock);
    config.device_memory -= executor.layout().base_pool_bytes + 3 * executor.layout().group_bytes();
    config.min_pool = 8 * executor.layout().block_bytes;
  }
  CpuExecutor executor(config, clock);
  EXPECT_GT(executor.layout().missing_groups, 0);
  EXPECT_GT(executor.layout().min_groups_out, executor.layout().missing_groups);
  EXPECT_LT(executor.layout().min_groups_out, executor.layout().max_groups_out());
  RandomSchedule schedule(executor, executor.layout(), {}, 4);
  add_all(schedule, prompts, 10);
  EXPECT_EQ(schedule.run(), expected);
}

TEST(CpuExecutor, PaddedExpertsGiveTheSameTokens) {
  ExecutorConfig config = golden_config("mixtral", 50);
  const Tokens prompts = make_prompts(5, 512, 3);
  const Tokens expected = run_plainly(config, prompts, 8);
  config.page_bytes = 16 * kKiB;
  config.device_memory += kMiB;
  RealClock clock;
  CpuExecutor executor(config, clock);
  const MemoryLayout& layout = executor.layout();
  EXPECT_GT(layout.shard_bytes(), layout.gate_up_data_bytes + layout.down_data_bytes);
  RandomSchedule schedule(executor, layout, {}, 5);
  add_all(schedule, prompts, 8);
  EXPECT_EQ(schedule.run(), expected);
  EXPECT_GT(schedule.counts().boundary_moves, 0);
}

TEST(CpuExecutor, ABudgetThatCannotHoldTheModelIsAnErrorWithTheNumbers) {
  ExecutorConfig config = golden_config("mixtral", 25);
  config.device_memory = kMiB;
  RealClock clock;
  try {
    CpuExecutor executor(config, clock);
    FAIL() << "started";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("1.00 MiB"));
  }
}

// A single failure at the k-th driver call of a short run, for every k: the move does not happen,
// the run goes on, tokens are the same.
TEST(CpuExecutor, AFailedMoveChangesNothingWhereverItFails) {
  const ExecutorConfig config = golden_config("mixtral", 75);
  const Tokens prompts = make_prompts(4, 512, 3);
  const Tokens expected = run_plainly(config, prompts, 6);
  int lost = 0, moves = 0;
  for (int k = 1;; k += kFailureStride) {
    RealClock clock;
    HostVirtualMemory memory;
    FailingVirtualMemory failing(memory);
    ShadowVirtualMemory shadow(failing);
    ScheduleOptions options;
    options.move_boundary = 0.6;
    options.lag = k % 2;
    CpuExecutor executor(config, clock, {}, &shadow);
    failing.arm(k);
    RandomSchedule schedule(executor, executor.layout(), options, 11);
    add_all(schedule, prompts, 6);
    ASSERT_EQ(schedule.run(), expected) << "failure at call " << k;
    ASSERT_LE(schedule.counts().lost, 1);
    lost += schedule.counts().lost;
    moves = schedule.counts().boundary_moves;
    if (schedule.counts().lost == 0) break;  // beyond the last call
  }
  EXPECT_GT(lost, 5);
  EXPECT_GT(moves, 5);
}

TEST(CpuExecutor, TakesTwoPlansAndAnswersInOrder) {
  RealClock clock;
  CpuExecutor executor(golden_config("mixtral", 0), clock);
  EXPECT_THROW(executor.wait(), InvariantError);
  executor.submit(single(7, {1, 2, 3}, {0, 1}));
  StepPlan next;  // rests on the token that step 7 yields
  next.step = 8;
  next.batch = {{0, 3, 1, true, {}}};
  executor.submit(next);
  EXPECT_EQ(executor.in_flight(), 2);
  EXPECT_THROW(executor.submit(next), InvariantError);
  const StepResult first = executor.wait(), second = executor.wait();
  EXPECT_EQ(first.step, 7u);
  EXPECT_EQ(second.step, 8u);
  EXPECT_TRUE(first.executed && second.executed);
  EXPECT_EQ(executor.in_flight(), 0);
  EXPECT_GE(second.start, first.start);
  EXPECT_GT(first.end, first.start);
  // Three tokens, two experts each, of eight.
  EXPECT_GE(first.experts_per_layer, 2);
  EXPECT_LE(first.experts_per_layer, 6);
  ASSERT_EQ(first.experts_by_layer.size(), static_cast<size_t>(executor.layout().moe_layers));
  float sum = 0;
  for (const uint16_t distinct : first.experts_by_layer) sum += distinct;
  EXPECT_FLOAT_EQ(sum / static_cast<float>(first.experts_by_layer.size()), first.experts_per_layer);
}

TEST(CpuExecutor, TellsHowLoadingGetsOn) {
  std::map<std::string, std::pair<size_t, size_t>> last;
  const LoadProgress progress = [&](const std::string& what, size_t done, size_t total) {
    EXPECT_GT(done, last[what].first);
    EXPECT_LE(done, total);
    last[what] = {done, total};
  };
  RealClock clock;
  CpuExecutor executor(golden_config("mixtral", 50), clock, progress);
  ASSERT_EQ(last.size(), 2u);
  EXPECT_EQ(last["dense weights"].first, last["dense weights"].second);
  EXPECT_EQ(last["experts"].first, last["experts"].second);
  EXPECT_EQ(last["experts"].second, executor.layout().expert_bytes());
}

TEST(CpuExecutor, CountsTokensByExpert) {
  RealClock clock;
  ExecutorConfig config = golden_config("mixtral", 0);
  config.expert_count_interval = 2;
  CpuExecutor executor(config, clock);
  executor.submit(single(1, {1, 2, 3}, {0, 1}));
  EXPECT_TRUE(executor.wait().expert_counts.empty());
  StepPlan next;
  next.step = 2;
  next.batch = {{0, 3, 1, true, {}}};
  executor.submit(next);
  const std::vector<uint32_t> counts = executor.wait().expert_counts;
  ASSERT_EQ(counts.size(), 4u * 8u);
  for (int layer = 0; layer < 4; ++layer) {
    uint32_t sum = 0;
    for (int e = 0; e < 8; ++e) sum += counts[layer * 8 + e];
    // Tokens x experts a token; in the last layer only tokens that sample go that far.
    EXPECT_EQ(sum, layer < 3 ? 4u * 2u : 2u * 2u);
  }
}

TEST(CpuExecutor, APlanThatBreaksTheContractStopsServing) {
  RealClock clock;
  CpuExecutor executor(golden_config("mixtral", 0), clock);
  StepPlan plan;
  plan.step = 1;
  plan.batch = {{5, 0, 1, true, {}}};  // no such request
  executor.submit(plan);
  EXPECT_THROW(executor.wait(), InvariantError);

  CpuExecutor other(golden_config("mixtral", 50), clock);
  other.submit(single(1, {1}, {other.layout().max_blocks() - 1}));  // a block in a hole
  EXPECT_THROW(other.wait(), InvariantError);
}

TEST(CpuExecutor, ModelsThatItCannotRunAreRefusedByName) {
  ExecutorConfig config;
  config.model = std::string(VAMP_SOURCE_DIR) + "/tests/golden/qwen3_next";
  RealClock clock;
  try {
    CpuExecutor executor(config, clock);
    FAIL() << "started";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("qwen3_next models can't run on the CPU yet"));
  }
}

}  // namespace
}  // namespace vamp
