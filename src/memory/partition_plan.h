// A move of the boundary as data, made before anything is touched. Part of HbmPartition.
#pragma once

#include <map>
#include <utility>
#include <vector>

#include "memory/expert_store.h"
#include "memory/kv_arena.h"
#include "memory/remap.h"
#include "memory/staging_banks.h"

namespace vamp {

// One frame's change of holder.
struct Transfer {
  enum class Kind {
    kGroupToBank,  // given up, first user of its bank place: the frame stays where it is mapped
    kGroupToFree,  // given up; the bank's frame is mapped in its place
    kBankToGroup,  // restored, last user of its bank place: the frame stays where it is mapped
    kFreeToGroup,  // restored with a free frame
    kSlotToFree,
    kFreeToSlot,
  };
  Kind kind;
  GroupId group;
  PoolSlot slot = 0;
};

// Plays a move through, step by step, on handles alone: what frames would change hands, which
// driver calls that takes. Frames on their way lie on a stack, in the same order as at the commit.
class PartitionPlan {
 public:
  PartitionPlan(const MemoryLayout& layout, const ExpertStore& experts, const StagingBanks& banks,
                const KvArena& kv)
      : layout_(layout), experts_(experts), banks_(banks), kv_(kv) {}

  void offload(GroupId id);
  void restore(GroupId id);
  void unmap(PoolSlot slot);
  void map(PoolSlot slot);

  const std::vector<Transfer>& transfers() const { return transfers_; }
  Remap& remap() { return remap_; }
  size_t free_frames() const { return free_.size(); }

 private:
  struct Place {
    Handle frame;
    int users = 0;
  };
  Place& place(GroupId id);
  void remap_group(GroupId id, Handle from, Handle to);
  Handle pop_free();

  const MemoryLayout& layout_;
  const ExpertStore& experts_;
  const StagingBanks& banks_;
  const KvArena& kv_;
  std::vector<Transfer> transfers_;
  Remap remap_;
  std::vector<Handle> free_;
  std::map<std::pair<int, int>, Place> places_;  // (bank, place) as the plan changes them
};

}  // namespace vamp
