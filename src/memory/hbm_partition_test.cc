#include "memory/hbm_partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>

#include "base/random.h"
#include "base/test_seed.h"
#include "memory/host_maps_check.h"
#include "memory/memory_test_support.h"

namespace vamp::test {
namespace {

// A partition with all that stands around it. KV slots are filled with what says which slot and
// when.
struct World {
  explicit World(const LayoutShape& shape = {}, int groups_out = -1)
      : layout(small_layout(shape)), source(layout) {
    partition.emplace(layout, groups_out < 0 ? layout.min_groups_out : groups_out, shadow, source);
    for (PoolSlot slot = 0; slot < partition->kv().slots(); ++slot)
      if (partition->kv().frame(slot)) fill(slot);
  }

  uint64_t* slot_words(PoolSlot slot) {
    return reinterpret_cast<uint64_t*>(partition->kv().slot(slot));
  }
  size_t words_per_slot() const { return layout.group_bytes() / 8; }
  void fill(PoolSlot slot) {
    stamps.resize(static_cast<size_t>(partition->kv().slots()));
    stamps[slot] = ++next_stamp;
    std::fill_n(slot_words(slot), words_per_slot(), stamps[slot]);
  }
  bool slot_holds(PoolSlot slot, uint64_t word) {
    const uint64_t* words = slot_words(slot);
    return std::all_of(words, words + words_per_slot(), [word](uint64_t w) { return w == word; });
  }

  // All that holds outside a move. Slots in `dead` had their blocks given up: their bytes may be
  // gone.
  void expect_sound(const std::vector<PoolSlot>& dead = {}) {
    partition->check_invariants();
    const ExpertStore& experts = partition->experts();
    for (int m = 0; m < layout.moe_layers; ++m) {
      const size_t groups = static_cast<size_t>(layout.groups_per_layer);
      EXPECT_TRUE(shadow.accessible(experts.expert(m, 0), groups * layout.group_bytes()));
      for (int e = 0; e < experts.first_given_up_expert(m); ++e)
        EXPECT_TRUE(source.right(m, e, experts.expert(m, e)))
            << "expert " << e << " of MoE layer " << m;
      for (int g = experts.head_groups(m); g < layout.groups_per_layer; ++g) {
        const GroupId id{m, g};
        const Extent& frame = experts.frame(id) ? experts.frame(id) : partition->banks().frame(id);
        EXPECT_EQ(shadow.at(experts.group(id))->handle, frame.handle());
      }
    }
    for (PoolSlot slot = 0; slot < partition->kv().slots(); ++slot) {
      const bool mapped = shadow.accessible(partition->kv().slot(slot), layout.group_bytes());
      EXPECT_EQ(mapped, static_cast<bool>(partition->kv().frame(slot))) << slot;
      if (!mapped) continue;
      const bool is_dead = std::find(dead.begin(), dead.end(), slot) != dead.end();
      EXPECT_TRUE(slot_holds(slot, stamps[slot]) || (is_dead && slot_holds(slot, 0))) << slot;
    }
    check_kernel_agrees(host, shadow);
  }

  void expect_moved(const PartitionTarget& target) {
    EXPECT_EQ(partition->groups_out(), target.groups_out);
    for (const PoolSlot slot : target.map_slots) {
      EXPECT_TRUE(slot_holds(slot, 0)) << "a slot joins the pool zeroed";
      fill(slot);
    }
    expect_sound();
  }

  MemoryLayout layout;
  HostVirtualMemory host;
  FailingVirtualMemory failing{host};
  ShadowVirtualMemory shadow{failing};
  PatternExperts source;
  std::optional<HbmPartition> partition;
  std::vector<uint64_t> stamps;
  uint64_t next_stamp = 0;
};

TEST(HbmPartition, StartsAtEveryBoundaryAndLeavesNothingBehind) {
  for (int n = 0; n <= small_layout().max_groups_out(); ++n) {
    World world({}, n);
    world.expect_sound();
    EXPECT_EQ(
        world.partition->ledger().created(),
        world.layout.physical_groups() * world.layout.group_bytes() + world.layout.base_pool_bytes);
    world.partition.reset();
    EXPECT_TRUE(world.shadow.table().empty());
    EXPECT_EQ(world.shadow.handles(), 0u);
    EXPECT_EQ(world.host.created_bytes(), 0u);
  }
}

TEST(HbmPartition, AtBoundaryZeroTheBanksCostNothing) {
  World world;
  EXPECT_EQ(world.partition->ledger().held(Holder::kStagingBank), 0u);
  EXPECT_EQ(world.partition->ledger().held(Holder::kKvArena), world.layout.base_pool_bytes);
}

TEST(HbmPartition, AFirstGroupBecomesTheBankWithoutAnyRemap) {
  World world;
  world.failing.arm(0, 0);
  world.partition->move({1, 0, {}, {}});
  EXPECT_EQ(world.failing.calls(), 0);
  EXPECT_EQ(world.partition->ledger().held(Holder::kStagingBank), world.layout.group_bytes());
  world.expect_sound();
}

// The driver's cost is by the handle: three of its calls change a mapping, not six.
TEST(HbmPartition, AGroupIsOneHandle) {
  World world({}, 2);
  const auto target = target_for(*world.partition, 3);
  world.failing.arm(0, 0);
  world.partition->move(target);
  // The group's memory makes room for its bank's and becomes a slot: unmap, map and its access;
  // map, its access and zeroes.
  EXPECT_EQ(world.failing.calls(), 6);
  world.expect_moved(target);
}

TEST(HbmPartition, GroupsOfOneBankAndPlaceShareItsMemory) {
  World world;
  world.partition->move(target_for(*world.partition, 3));  // one of layers 1, 2, 3; 1 and 3 share
  const ExpertStore& experts = world.partition->experts();
  std::byte* one = experts.group({1, 7});
  std::byte* three = experts.group({3, 7});
  one[5] = std::byte{42};
  EXPECT_EQ(three[5], std::byte{42});
  EXPECT_NE(experts.group({2, 7})[5], std::byte{42});
}

TEST(HbmPartition, MovesBothWaysWithHolesInTheArena) {
  World world;
  const std::vector<int> boundaries = {4, 8, 12, 6, 9, 1, 12, 0};
  size_t pick = 0;
  for (const int n : boundaries) {
    const auto target =
        target_for(*world.partition, n, [&](size_t count) { return pick++ % count; });
    world.partition->move(target);
    world.expect_moved(target);
  }
}

TEST(HbmPartition, SlotsMayChangePlacesAtOneBoundary) {
  World world;
  world.partition->move(target_for(*world.partition, 6));
  for (const PoolSlot slot : {0, 1}) world.fill(slot);
  const PoolSlot hole = world.partition->kv().slots() - 1;
  const PartitionTarget target{6, 0, {hole}, {1}};
  world.partition->move(target);
  world.expect_moved(target);
}

TEST(HbmPartition, FailingCallsAtEveryPlaceChangeNothing) {
  World world;
  size_t pick = 0;
  int failures = 0;
  for (const int n : {3, 8, 12, 7, 10, 2, 12, 0}) {
    const auto target =
        target_for(*world.partition, n, [&](size_t count) { return pick++ % count; });
    bool moved = false;
    for (int k = 1; !moved; ++k) {
      const auto table = world.shadow.table();
      const int before = world.partition->groups_out();
      world.failing.arm(k);
      try {
        world.partition->move(target);
        moved = true;
        world.failing.disarm();
        world.expect_moved(target);
      } catch (const Error&) {
        world.failing.disarm();
        ++failures;
        EXPECT_FALSE(world.partition->broken());
        EXPECT_EQ(world.partition->groups_out(), before);
        EXPECT_EQ(world.shadow.table(), table);
        world.expect_sound(target.unmap_slots);
      }
    }
  }
  EXPECT_GT(failures, 80);
}

TEST(HbmPartition, AnUnreadableHostCopyChangesNothing) {
  World world({}, 12);
  for (const int n : {7, 2, 0}) {
    const auto target = target_for(*world.partition, n);
    bool moved = false;
    for (int k = 1; !moved; ++k) {
      const auto table = world.shadow.table();
      world.source.fail(k);
      try {
        world.partition->move(target);
        moved = true;
        world.expect_moved(target);
      } catch (const Error&) {
        EXPECT_EQ(world.shadow.table(), table);
        world.expect_sound(target.unmap_slots);
      }
    }
  }
}

TEST(HbmPartition, ABreakInTheWayBackStopsServing) {
  const auto failures_when = [](int from, int to, int k) {
    World world({}, from);
    world.failing.arm(k, 1 << 20);
    const auto target = target_for(*world.partition, to);
    EXPECT_THROW(world.partition->move(target), Error);
    world.failing.disarm();
    const bool broken = world.partition->broken().has_value();
    if (broken) {
      EXPECT_NE(world.partition->broken()->find("failed on purpose"), std::string::npos);
      EXPECT_THROW(world.partition->move(target), InvariantError);
    } else {
      world.expect_sound(target.unmap_slots);
    }
    return broken;
  };
  for (const auto& [from, to] : {std::pair(0, 6), std::pair(12, 6)}) {
    World world({}, from);
    world.failing.arm(0, 0);
    world.partition->move(target_for(*world.partition, to));
    EXPECT_FALSE(failures_when(from, to, 1));  // nothing done yet: nothing to take back
    for (int k = 2; k <= world.failing.calls(); ++k) EXPECT_TRUE(failures_when(from, to, k)) << k;
  }
}

TEST(HbmPartition, FailingStartsLeaveNothingBehind) {
  const MemoryLayout layout = small_layout();
  PatternExperts source(layout);
  HostVirtualMemory host;
  FailingVirtualMemory failing(host);
  ShadowVirtualMemory shadow(failing);
  bool started = false;
  for (int k = 1; !started; ++k) {
    failing.arm(k);
    try {
      HbmPartition partition(layout, 7, shadow, source);
      started = true;
    } catch (const Error&) {
      EXPECT_EQ(shadow.handles(), 0u);
      EXPECT_TRUE(shadow.table().empty());
    }
  }
  HostVirtualMemory little({.capacity = 20 * 4096});
  EXPECT_THROW(HbmPartition(layout, 0, little, source), Error);
  EXPECT_EQ(little.created_bytes(), 0u);
}

class HbmPartitionWalk : public testing::TestWithParam<LayoutShape> {};

TEST_P(HbmPartitionWalk, KeepsEveryByteThatCounts) {
  World world(GetParam());
  Random random(seed_of_soak().value_or(11));
  for (int step = 0; step < 150; ++step) {
    const int n = static_cast<int>(
        random.between(world.layout.min_groups_out, world.layout.max_groups_out()));
    const auto target =
        target_for(*world.partition, n, [&](size_t count) { return random.below(count); });
    const bool fails = random.chance(0.3);
    if (fails) world.failing.arm(static_cast<int>(random.between(1, 30)));
    try {
      world.partition->move(target);
      world.failing.disarm();
      world.expect_moved(target);
    } catch (const Error&) {
      EXPECT_TRUE(fails);
      world.failing.disarm();
      world.expect_sound(target.unmap_slots);
      for (const PoolSlot slot : target.unmap_slots) world.fill(slot);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, HbmPartitionWalk,
    testing::Values(
        LayoutShape{}, LayoutShape{.experts = 16, .max_groups_out_per_layer = 8},
        LayoutShape{.moe_layers = 5, .first_moe_layer_resident = false, .missing_groups = 9},
        LayoutShape{.moe_layers = 2, .max_groups_out_per_layer = 1, .base_pool_pages = 0},
        LayoutShape{.moe_layers = 3, .max_groups_out_per_layer = 3, .page = 16384}));

TEST(HbmPartition, OrdersChangeOnlyWhereTheyMoveNothing) {
  World world;
  world.partition->move(target_for(*world.partition, 3));
  for (PoolSlot slot = 0; slot < world.partition->kv().mapped_slots(); ++slot) world.fill(slot);
  // Layer 2 is coldest from here on.
  OffloadOrder cold{1, {{3, 7}, {2, 7}, {1, 7}, {2, 6}, {2, 5}, {2, 4}, {1, 6}, {1, 5}, {1, 4}}};
  world.partition->set_order(cold);
  EXPECT_EQ(world.partition->layout().order.version, 1u);
  EXPECT_THROW(world.partition->move({6, 0, {}, {}}), InvariantError);  // meant for the old one
  const auto target = target_for(*world.partition, 6);
  world.partition->move(target);
  world.expect_moved(target);
  EXPECT_EQ(world.partition->experts().groups_out(2), 4);
  EXPECT_EQ(world.partition->experts().groups_out(1), 1);
  const auto back = target_for(*world.partition, 0);
  world.partition->move(back);
  world.expect_moved(back);

  world.partition->move(target_for(*world.partition, 4));
  const auto with = [](std::vector<GroupId> groups) { return OffloadOrder{2, std::move(groups)}; };
  const HbmPartition& partition = *world.partition;
  EXPECT_THROW(world.partition->set_order(with({{1, 7}, {1, 6}, {1, 5}, {1, 4}})), InvariantError);
  EXPECT_THROW(world.partition->set_order(with({{1, 7}})), InvariantError);  // ends too early
  EXPECT_THROW(world.partition->set_order(with({{1, 6}})), InvariantError);  // not from the tail
  EXPECT_THROW(world.partition->set_order(with({{0, 7}})), InvariantError);  // kept for good
  EXPECT_THROW(world.partition->set_order(with({{1, 7}, {1, 6}, {1, 5}, {1, 4}, {1, 3}})),
               InvariantError);
  EXPECT_EQ(partition.layout().order.version, 1u);
}

TEST(HbmPartition, WrongTargetsAreBugs) {
  World world({}, 6);
  HbmPartition& partition = *world.partition;
  const PoolSlot hole = partition.kv().slots() - 1;
  EXPECT_THROW(partition.move({13, 0, {}, {}}), InvariantError);
  EXPECT_THROW(partition.move({-1, 0, {}, {}}), InvariantError);
  EXPECT_THROW(partition.move({6, 5, {}, {}}), InvariantError);
  EXPECT_THROW(partition.move({6, 0, {hole}, {}}), InvariantError);      // no frame for it
  EXPECT_THROW(partition.move({6, 0, {0}, {1}}), InvariantError);        // mapped already
  EXPECT_THROW(partition.move({6, 0, {hole}, {hole}}), InvariantError);  // twice
  EXPECT_THROW(partition.move({6, 0, {hole}, {99}}), InvariantError);
  EXPECT_THROW(partition.move({12, 0, {}, {}}), InvariantError);  // frames left over
  EXPECT_FALSE(partition.broken());
  world.expect_sound();

  World scarce({.first_moe_layer_resident = false, .missing_groups = 5});
  ASSERT_GT(scarce.layout.min_groups_out, 5);
  EXPECT_EQ(scarce.partition->groups_out(), scarce.layout.min_groups_out);
  EXPECT_THROW(scarce.partition->move({5, 0, {}, {}}), InvariantError);
}

TEST(KvArena, BlocksExistWhereEveryByteIsMapped) {
  World world({}, 12);
  const KvArena& kv = world.partition->kv();
  EXPECT_EQ(kv.block(3), kv.base() + 3 * world.layout.block_bytes);
  EXPECT_EQ(kv.mapped_blocks(), world.layout.max_blocks());
  const auto target = target_for(*world.partition, 10, [](size_t) { return size_t{1}; });
  ASSERT_FALSE(target.unmap_slots.empty());
  std::vector<bool> mapped = kv.mapped();
  std::vector<bool> expected(static_cast<size_t>(world.layout.max_blocks()), true);
  for (const PoolSlot slot : target.unmap_slots) {
    for (const BlockId id : world.layout.blocks_touching(slot, mapped)) expected[id] = false;
    mapped[slot] = false;
  }
  world.partition->move(target);
  EXPECT_EQ(kv.mapped(), mapped);
  for (BlockId id = 0; id < world.layout.max_blocks(); ++id)
    EXPECT_EQ(kv.block_mapped(id), expected[id]) << id;
  EXPECT_FALSE(kv.block_mapped(-1));
  EXPECT_FALSE(kv.block_mapped(world.layout.max_blocks()));
}

}  // namespace
}  // namespace vamp::test
