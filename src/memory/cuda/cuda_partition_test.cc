#include "memory/cuda/cuda_test_support.h"

namespace vamp::test {
namespace {

using CudaPartition = CudaTest;

TEST_F(CudaPartition, MovesBothWaysAndReadsBackFromTheHost) {
  CudaWorld world;
  for (const int n : {9, 20, 4, 15, 0}) {
    const auto target = target_for(world.partition, n);
    world.partition.move(target);
    world.partition.check_invariants();
    world.expect_driver_agrees();
    const std::vector<std::byte> zeros(world.layout.group_bytes());
    for (const PoolSlot slot : target.map_slots)
      EXPECT_EQ(world.read(world.partition.kv().slot(slot), zeros.size()), zeros);
  }
  world.expect_resident_right();
}

TEST_F(CudaPartition, FailingCallsAtEveryPlaceChangeNothing) {
  CudaWorld world;
  for (const int n : {8, 3, 12, 0}) {
    const auto target = target_for(world.partition, n);
    bool moved = false;
    for (int k = 1; !moved; ++k) {
      const auto table = world.shadow.table();
      world.failing.arm(k);
      try {
        world.partition.move(target);
        moved = true;
      } catch (const Error&) {
        EXPECT_EQ(world.shadow.table(), table);
        EXPECT_FALSE(world.partition.broken());
      }
      world.failing.disarm();
      world.partition.check_invariants();
      world.expect_driver_agrees();
    }
    world.expect_resident_right();
  }
}

TEST_F(CudaPartition, LeavesNothingOnTheDevice) {
  CudaVirtualMemory device(0);
  ShadowVirtualMemory shadow(device);
  const MemoryLayout layout = small_layout({.page = device.granularity()});
  const PatternExperts source(layout);
  const PinnedExperts pinned(layout, source);
  {
    HbmPartition partition(layout, 7, shadow, pinned);
    EXPECT_EQ(device.created_bytes(), partition.ledger().created());
    EXPECT_EQ(pinned.pinned_bytes(), 3u * 7 * layout.shard_bytes());
  }
  EXPECT_EQ(device.created_bytes(), 0u);
  EXPECT_TRUE(shadow.table().empty());
}

}  // namespace
}  // namespace vamp::test
