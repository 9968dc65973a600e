// The moving boundary, seen through the scheduler: a pool that grows, shrinks and fails to.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/scheduler_test_util.h"

namespace vamp {
namespace {

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
      small_scheduler(),
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

TEST(AdmissionLimit, KeepsOutWhoWouldTakeMoreUnlessAlone) {
  auto policy = std::make_unique<ScriptedPolicy>();
  policy->limit = 7;
  SchedulerHarness harness(small_scheduler(), {.base_blocks = 14, .block_tokens = 4},
                           std::move(policy));
  harness.add(1, iota(0, 12), 4);    // three blocks, then four
  harness.add(2, iota(100, 12), 4);  // six together: within the limit
  harness.add(3, iota(200, 12), 4);  // nine: not, though eight blocks are free
  harness.step();
  harness.step();
  EXPECT_EQ(harness.scheduler().stats().running, 2);
  EXPECT_EQ(harness.scheduler().stats().waiting, 1);
  harness.run();
  harness.expect_answer(3, 4);
  harness.add(4, iota(300, 33), 4);  // more than the limit by itself
  harness.run();
  harness.expect_answer(4, 4);
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
      small_scheduler(),
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
  SchedulerConfig config = small_scheduler();
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

// Gives up experts whenever it may, else does as a static engine.
ReclaimDecision give_up_first(const ReclaimInputs& inputs) {
  if (!inputs.boundary.can_move) return evict_or_preempt(inputs);
  ReclaimDecision decision;
  decision.kind = ActionKind::kGiveUpExperts;
  decision.give_up_groups = 4;
  return decision;
}

class ImmovableBoundary : public testing::Test {
 protected:
  ImmovableBoundary() {
    config_.boundary_backoff = 20e3;
    config_.boundary_cooling = 1e6;
    config_.max_boundary_failures = 3;
    auto policy = std::make_unique<ScriptedPolicy>();
    policy->on_choose = give_up_first;
    harness_ = std::make_unique<SchedulerHarness>(
        config_,
        TestLayoutOptions{.base_blocks = 6, .block_tokens = 4, .max_groups_out_per_layer = 6},
        std::move(policy));
    harness_->executor().set_boundary_moves(false);
  }
  SchedulerConfig config_ = small_scheduler();
  std::unique_ptr<SchedulerHarness> harness_;
};

TEST_F(ImmovableBoundary, WhatOnlyFitsWithItMovedIsRefusedAndTheOthersGoOn) {
  harness_->add(1, iota(0, 30), 2);  // 24 tokens are all that the pool holds
  harness_->add(2, iota(100, 10), 5);
  harness_->run();
  EXPECT_EQ(harness_->end(1).reason, FinishReason::kError);
  EXPECT_THAT(harness_->end(1).error, testing::HasSubstr("could not be moved"));
  EXPECT_THAT(harness_->end(1).error,
              testing::HasSubstr("3 failures in a row, the last: injected"));
  harness_->expect_answer(2, 5);
  const uint64_t failed = harness_->scheduler().stats().failed_steps;
  EXPECT_THAT(harness_->add(3, iota(0, 30), 2).value_or(""),
              testing::HasSubstr("could not be moved"));
  // Others that fall short of blocks make do with what there is.
  cost_of(*harness_, 4, iota(200, 21), 2);
  cost_of(*harness_, 5, iota(300, 21), 2);
  EXPECT_EQ(harness_->scheduler().stats().failed_steps, failed);
}

TEST_F(ImmovableBoundary, ARequestThatGrowsBeyondThePoolKeepsWhatItHasSaidAndEnds) {
  harness_->add(1, iota(0, 20), 12);
  harness_->run();
  EXPECT_EQ(harness_->end(1).reason, FinishReason::kError);
  EXPECT_EQ(harness_->output(1).size(), 5u);  // 24 tokens in the cache, the last one needs no place
  harness_->expect_right_tokens(1);
}

TEST_F(ImmovableBoundary, IsTriedAgainAfterACoolingTime) {
  harness_->add(1, iota(0, 30), 2);
  harness_->run();
  ASSERT_EQ(harness_->end(1).reason, FinishReason::kError);
  harness_->now() += config_.boundary_cooling;
  harness_->add(2, iota(0, 30), 2);  // one more try, which fails
  harness_->run();
  EXPECT_EQ(harness_->end(2).reason, FinishReason::kError);
  EXPECT_THAT(harness_->end(2).error, testing::HasSubstr("4 failures in a row"));
  harness_->now() += config_.boundary_cooling;
  harness_->executor().set_boundary_moves(true);
  harness_->add(3, iota(0, 30), 2);
  harness_->run();
  harness_->expect_answer(3, 2);
  EXPECT_GT(harness_->scheduler().stats().groups_out, 0);
}

}  // namespace
}  // namespace vamp
