// The cache's events, seen through the scheduler. That they add up to what the cache holds is
// tested by SchedulerRandom's lives.
#include "core/kv_event_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/scheduler_test_util.h"

namespace vamp {
namespace {

using Kind = KvEvent::Kind;

SchedulerConfig told() {
  SchedulerConfig config = small_scheduler();
  config.kv_events = true;
  return config;
}

std::vector<PrefixKey> chain(uint64_t salt, const std::vector<TokenId>& tokens) {
  std::vector<PrefixKey> keys;
  PrefixKey parent = root_key(salt);
  for (size_t first = 0; first + 4 <= tokens.size(); first += 4)
    keys.push_back(parent = child_key(parent, std::span(tokens).subspan(first, 4)));
  return keys;
}

TEST(KvEvents, APromptIsOneEventAndItsContinuationNamesItsParent) {
  SchedulerHarness harness(told(), {.base_blocks = 30, .block_tokens = 4});
  cost_of(harness, 1, iota(0, 10));
  const std::vector<KvEvent> first = harness.take_kv_events();
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].kind, Kind::kStored);
  EXPECT_EQ(first[0].tier, CacheTier::kDevice);
  EXPECT_EQ(first[0].keys, chain(0, iota(0, 8)));
  EXPECT_EQ(first[0].tokens, iota(0, 8));
  EXPECT_FALSE(first[0].parent);

  cost_of(harness, 2, iota(0, 14));
  const std::vector<KvEvent> second = harness.take_kv_events();
  ASSERT_EQ(second.size(), 1u);  // what was there is not told again
  EXPECT_EQ(second[0].parent, first[0].keys.back());
  EXPECT_EQ(second[0].tokens, iota(8, 4));
}

TEST(KvEvents, WhatIsDroppedIsToldBeforeThePlanThatReusesIt) {
  SchedulerHarness harness(told(), {.base_blocks = 6, .block_tokens = 4});
  cost_of(harness, 1, iota(0, 17));
  harness.take_kv_events();
  harness.add(2, iota(100, 13), 1);
  const StepPlan plan = harness.step();
  ASSERT_EQ(plan.num_tokens(), 13);
  const std::vector<KvEvent> events = harness.take_kv_events();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, Kind::kRemoved);
  std::vector<PrefixKey> last = chain(0, iota(0, 16));
  std::reverse(last.begin(), last.end());
  EXPECT_EQ(events[0].keys, std::vector(last.begin(), last.begin() + 2));  // ends go first
  EXPECT_EQ(events[1].kind, Kind::kStored);
  harness.run();
}

TEST(KvEvents, TheHostTierIsToldOnceItsCopyHasEnded) {
  SchedulerConfig config = told();
  config.host_blocks = 20;
  auto policy = std::make_unique<ScriptedPolicy>();
  policy->on_choose = demote_all;
  SchedulerHarness harness(config, {.base_blocks = 6, .block_tokens = 4}, std::move(policy));
  cost_of(harness, 1, iota(0, 17));
  harness.take_kv_events();
  cost_of(harness, 2, iota(100, 17));
  std::vector<PrefixKey> stored, removed;
  for (const KvEvent& event : harness.take_kv_events()) {
    if (event.kind == Kind::kStored && event.tier == CacheTier::kHost) {
      EXPECT_TRUE(removed.size() <= stored.size()) << "gone before the host had it";
      stored.insert(stored.end(), event.keys.begin(), event.keys.end());
      EXPECT_EQ(event.tokens.size(), 4 * event.keys.size());
    }
    if (event.kind == Kind::kRemoved && event.tier == CacheTier::kDevice)
      removed.insert(removed.end(), event.keys.begin(), event.keys.end());
  }
  EXPECT_GE(stored.size(), 3u);
  EXPECT_THAT(stored, testing::IsSupersetOf(removed));
  // Back from there: the device has it again, and the host still.
  cost_of(harness, 3, iota(0, 17));
  EXPECT_GT(harness.stats(3).host_cached_tokens, 0);
}

TEST(KvEvents, TenantsHaveNamesOfTheirOwn) {
  SchedulerHarness harness(told(), {.base_blocks = 30, .block_tokens = 4});
  for (const uint64_t salt : {0, 1}) {
    RequestInput input;
    input.id = salt + 1;
    input.prompt = iota(0, 9);
    input.cache_salt = salt;
    input.sampling.max_tokens = 1;
    harness.add(input);
    harness.run();
    const std::vector<KvEvent> events = harness.take_kv_events();
    ASSERT_EQ(events.size(), 1u) << "the same content was taken for another tenant's";
    EXPECT_EQ(events[0].keys, chain(salt, iota(0, 8)));
    EXPECT_FALSE(events[0].parent) << "the salt's own name is nobody's business";
  }
}

TEST(KvEvents, AResetThatLeavesNothingSaysSo) {
  SchedulerHarness harness(told(), {.base_blocks = 30, .block_tokens = 4});
  cost_of(harness, 1, iota(0, 10));
  harness.add(2, iota(100, 10), 5);
  harness.step();
  harness.scheduler().reset_prefix_cache();  // request 2 holds its blocks
  harness.run();
  EXPECT_EQ(harness.replica().count(Kind::kCleared), 0);
  EXPECT_EQ(harness.replica().count(Kind::kRemoved), 1);
  harness.scheduler().reset_prefix_cache();
  harness.step();
  EXPECT_EQ(harness.take_kv_events().back().kind, Kind::kCleared);
}

TEST(KvEvents, NobodyListensUnlessAsked) {
  SchedulerHarness harness(small_scheduler(), {.base_blocks = 30, .block_tokens = 4});
  cost_of(harness, 1, iota(0, 10));
  EXPECT_TRUE(harness.take_kv_events().empty());
}

// Giving memory back to the experts: what lay there is gone for a router before the plan that
// unmaps it is out.
TEST(KvEvents, ABoundaryThatComesDownIsToldBeforeItsPagesGo) {
  auto policy = std::make_unique<ScriptedPolicy>();
  policy->on_choose = [](const ReclaimInputs& inputs) {
    ReclaimDecision decision;
    decision.give_up_groups = inputs.boundary.can_move ? 100 : 0;
    return decision.give_up_groups > 0 ? decision : evict_or_preempt(inputs);
  };
  auto restore = std::make_shared<int>(0);
  policy->on_background = [restore](const BackgroundInputs&) {
    BackgroundDecision decision;
    decision.restore_groups = std::exchange(*restore, 0);
    return decision;
  };
  SchedulerHarness harness(
      told(),
      {.base_blocks = 6, .block_tokens = 4, .group_bytes = 2304, .max_groups_out_per_layer = 6},
      std::move(policy));
  cost_of(harness, 1, iota(0, 21));
  cost_of(harness, 2, iota(100, 61));
  harness.take_kv_events();
  const int before = harness.scheduler().stats().cached_blocks;
  ASSERT_GT(before, 6);
  *restore = 100;
  bool unmapped = false;
  for (int i = 0; i < 20 && !unmapped; ++i)
    unmapped = harness.step().boundary.has_value();  // step() compares the replica with the cache
  ASSERT_TRUE(unmapped);
  size_t removed = 0;
  for (const KvEvent& event : harness.take_kv_events()) {
    EXPECT_EQ(event.kind, Kind::kRemoved);
    removed += event.keys.size();
  }
  EXPECT_EQ(static_cast<int>(removed), before - harness.scheduler().stats().cached_blocks);
  EXPECT_LE(harness.scheduler().stats().cached_blocks, 6);
}

}  // namespace
}  // namespace vamp
