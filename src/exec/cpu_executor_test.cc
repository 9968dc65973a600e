#include "exec/cpu_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "exec/executor_test_support.h"
#include "memory/host_virtual_memory.h"
#include "memory/virtual_memory_decorators.h"

namespace vamp {
namespace {

using test::add_all;
using test::golden_config;
using test::make_prompts;
using test::run_plainly;
using test::Tokens;
using ::testing::HasSubstr;

#ifdef VAMP_SANITIZED
constexpr int kSeeds = 3, kFailureStride = 17;
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
  StagingStats staging;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
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

}  // namespace
}  // namespace vamp
