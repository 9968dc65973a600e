#include "memory/staging.h"

#include <gtest/gtest.h>

#include <atomic>
#include <functional>

#include "base/random.h"
#include "memory/host_virtual_memory.h"
#include "memory/memory_test_support.h"
#include "memory/virtual_memory_decorators.h"

namespace vamp::test {
namespace {

// Time that moves 100 us with each copy; both threads read it.
class CopyClock final : public Clock {
 public:
  Micros now() const override { return static_cast<Micros>(ticks_.load()) * 100; }
  void sleep_until(Micros) override {}
  void tick() { ++ticks_; }

 private:
  std::atomic<int> ticks_ = 0;
};

// Tells before each copy which layer is about to be copied.
class WatchedExperts final : public HostExperts {
 public:
  using Watch = std::function<void(int moe_layer)>;
  WatchedExperts(const HostExperts& inner, CopyClock& clock) : inner_(inner), clock_(clock) {}

  void copy(int moe_layer, int first, int count, std::byte* to) const override {
    if (watch) watch(moe_layer);
    inner_.copy(moe_layer, first, count, to);
    clock_.tick();
  }

  Watch watch;

 private:
  const HostExperts& inner_;
  CopyClock& clock_;
};

class StagingTest : public testing::TestWithParam<bool> {
 protected:
  StagingTest() { staging_.emplace(partition_, watched_, clock_); }

  bool right(int m, int e) const { return source_.right(m, e, partition_.experts().expert(m, e)); }
  bool layer_right(int m) const {
    for (int e = 0; e < layout_.experts; ++e)
      if (!right(m, e)) return false;
    return true;
  }
  // All layers of a step, whole regions, as an executor does it.
  void run_step() {
    for (int m = 0; m < layout_.moe_layers; ++m) staging_->begin_region(m);
    for (int m = 0; m < layout_.moe_layers; ++m) {
      staging_->wait(m);
      EXPECT_TRUE(layer_right(m)) << m;
      staging_->release(m);
    }
  }

  MemoryLayout layout_ = small_layout({.moe_layers = 6, .first_moe_layer_resident = GetParam()});
  PatternExperts source_{layout_};
  HostVirtualMemory host_;
  ShadowVirtualMemory shadow_{host_};
  HbmPartition partition_{layout_, layout_.max_groups_out() - 3, shadow_, source_};
  CopyClock clock_;
  WatchedExperts watched_{source_, clock_};
  std::optional<Staging> staging_;
};

INSTANTIATE_TEST_SUITE_P(FirstLayerResident, StagingTest, testing::Bool());

TEST_P(StagingTest, EveryLayerSeesItsOwnExpertsWhole) {
  for (int step = 0; step < 20; ++step) {
    run_step();
    size_t bytes = 0;
    int layers = 0;
    for (int m = 0; m < layout_.moe_layers; ++m) {
      bytes += static_cast<size_t>(partition_.experts().experts_out(m)) * layout_.shard_bytes();
      layers += partition_.experts().experts_out(m) > 0;
    }
    EXPECT_EQ(layers, layout_.moe_layers - (GetParam() ? 1 : 0));
    const StagingCounters counters = staging_->end_step();
    EXPECT_EQ(counters.staged_bytes, bytes);
    EXPECT_EQ(counters.copy, 100.0 * layers);
    EXPECT_LE(counters.stall, counters.copy);
  }
}

TEST_P(StagingTest, WorksAtEveryBoundary) {
  while (partition_.groups_out() > 0) {
    run_step();
    staging_->end_step();
    partition_.move(target_for(partition_, partition_.groups_out() - 1));
  }
  run_step();
  EXPECT_EQ(staging_->end_step().staged_bytes, 0u);
}

TEST_P(StagingTest, ABankIsOverwrittenOnlyAfterItsLayerWasReleased) {
  std::array<std::atomic<bool>, 6> released{};
  std::atomic<int> early = 0, copies = 0;
  const int first = GetParam() ? 1 : 0;
  watched_.watch = [&](int m) {
    ++copies;
    if (m - 2 >= first && !released[m - 2]) ++early;
  };
  for (int m = 0; m < layout_.moe_layers; ++m) staging_->begin_region(m);
  for (int m = 0; m < layout_.moe_layers; ++m) {
    staging_->wait(m);
    // The next layer's copy is free to run; give the one after it every chance to run wrongly.
    if (m + 1 < layout_.moe_layers) staging_->wait(m + 1);
    EXPECT_TRUE(layer_right(m));
    released[m] = true;
    staging_->release(m);
  }
  EXPECT_EQ(early, 0);
  EXPECT_EQ(copies, layout_.moe_layers - first);
  staging_->end_step();
}

TEST_P(StagingTest, ActivatedExpertsAloneAreCopied) {
  Random random(3);
  for (int round = 0; round < 30; ++round) {
    const int m = static_cast<int>(random.between(0, layout_.moe_layers - 1));
    const int given_up = partition_.experts().first_given_up_expert(m);
    for (int e = given_up; e < layout_.experts; ++e)
      std::memset(partition_.experts().expert(m, e), 0xEE, layout_.shard_bytes());
    std::vector<int> chosen;
    size_t staged = 0;
    for (int e = 0; e < layout_.experts; ++e) {
      if (!random.chance(0.4)) continue;
      chosen.push_back(e);
      staged += e >= given_up;
    }
    staging_->begin_experts(m, chosen);
    staging_->wait(m);
    for (int e = 0; e < layout_.experts; ++e) {
      const bool is_chosen = std::find(chosen.begin(), chosen.end(), e) != chosen.end();
      EXPECT_EQ(right(m, e), e < given_up || is_chosen);
    }
    staging_->release(m);
    EXPECT_EQ(staging_->end_step().staged_bytes, staged * layout_.shard_bytes());
  }
  EXPECT_THROW(staging_->begin_experts(5, std::vector<int>{14, 12}), InvariantError);
}

TEST_P(StagingTest, AnUnreadableHostCopyFailsTheStepAndNoOther) {
  for (int call = 1; call <= 5; ++call) {
    source_.fail(call);
    EXPECT_THROW(run_step(), Error);
    staging_->abandon();
    source_.fail(0, 0);
    run_step();
    staging_->end_step();
  }
}

TEST_P(StagingTest, AStepMayBeAbandonedAnywhere) {
  for (int layers = 0; layers < layout_.moe_layers; ++layers) {
    for (int m = 0; m < layout_.moe_layers; ++m) staging_->begin_region(m);
    for (int m = 0; m < layers; ++m) {
      staging_->wait(m);
      if (m + 1 < layers) staging_->release(m);
    }
    staging_->abandon();
    run_step();
    staging_->end_step();
  }
  staging_->begin_region(2);  // and the end may come at any time
}

TEST_P(StagingTest, MisuseIsFound) {
  EXPECT_THROW(([&] {
                 staging_->begin_region(3);
                 staging_->begin_region(3);
               })(),
               InvariantError);
  EXPECT_THROW(staging_->end_step(), InvariantError);  // layer 3 was not released
  staging_->wait(3);
  staging_->release(3);
  staging_->release(3);  // nothing to release: allowed
  staging_->wait(3);
  staging_->end_step();
}

}  // namespace
}  // namespace vamp::test
