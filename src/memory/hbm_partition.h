// The boundary between expert weights and KV cache in one rank's memory.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "memory/expert_store.h"
#include "memory/host_experts.h"
#include "memory/kv_arena.h"
#include "memory/partition_plan.h"
#include "memory/staging_banks.h"

namespace vamp {

// Where the boundary shall be, and which KV pool slots come and go with it (StepPlan's
// BoundaryMove). The slots must add up: mapped ones after the move = layout.pool_slots(groups_out).
struct PartitionTarget {
  int groups_out = 0;
  uint64_t order_version = 0;
  std::vector<PoolSlot> map_slots;
  std::vector<PoolSlot> unmap_slots;
};

// Owns all movable memory of a rank: expert store, staging banks, KV arena. The boundary is one
// integer, groups_out: the first so many groups of the offload order are given up.
//
// Outside move() every expert address is mapped: to the group's own frame, or to its place in a
// staging bank, whose content then is whatever was staged there last.
//
// move() is all or nothing. It plans every driver call, makes them, and on a failure takes the
// inverses of those made, brings back what bytes they had touched, and throws Error; nothing has
// changed then and the next move may be tried. If an inverse fails too, the partition is broken:
// every later call throws.
//
// One thread at a time. The caller sees to it that no step, copy or staging uses the memory
// meanwhile. Nothing here may lie in a range that a communication library has registered.
class HbmPartition {
 public:
  // Creates all physical memory, maps the state at `groups_out` (pool slots 0 ... pool_slots-1
  // mapped, KV zeroed) and loads every resident expert. `groups_out` from layout.min_groups_out to
  // max_groups_out(). `memory` and `experts` must outlive this. Throws Error if memory falls short.
  HbmPartition(const MemoryLayout& layout, int groups_out, VirtualMemory& memory,
               const HostExperts& experts);
  ~HbmPartition();
  HbmPartition(const HbmPartition&) = delete;
  HbmPartition& operator=(const HbmPartition&) = delete;

  void move(const PartitionTarget& target);

  // A new order for later moves. It must give up the same groups at the present boundary, each
  // layer's from its tail inward, and no group that the layout keeps for good.
  void set_order(OffloadOrder order);

  const MemoryLayout& layout() const { return layout_; }  // with the order in force
  int groups_out() const { return groups_out_; }
  const ExpertStore& experts() const { return experts_; }
  const StagingBanks& banks() const { return banks_; }
  const KvArena& kv() const { return kv_; }
  const ExtentLedger& ledger() const { return ledger_; }

  // Set when a failed move could not be undone: why. Serving must stop.
  const std::optional<std::string>& broken() const { return broken_; }

  // Walks all frames: each in exactly one place, sums as the ledger has them. Throws
  // InvariantError. The sums alone are checked after every move.
  void check_invariants() const;

 private:
  void start(int groups_out);
  Remap start_mappings() const;
  void load(int moe_layer, int first_group, int groups) const;
  void check_order(const OffloadOrder& order) const;
  void check_target(const PartitionTarget& target) const;
  PartitionPlan plan(const PartitionTarget& target) const;
  void carry_out(PartitionPlan& plan);
  void check_sums() const;
  void commit(const PartitionPlan& plan);
  void unmap_all() noexcept;

  MemoryLayout layout_;
  VirtualMemory& memory_;
  const HostExperts& source_;
  ExtentLedger ledger_;
  ExpertStore experts_;
  StagingBanks banks_;
  KvArena kv_;
  std::vector<Extent> free_;  // empty outside move()
  int groups_out_ = 0;
  std::optional<std::string> broken_;
};

}  // namespace vamp
