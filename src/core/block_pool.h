// The KV blocks of the device: which exist, which are free, who holds them.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/step_plan.h"
#include "model/memory_layout.h"

namespace vamp {

using NodeId = int32_t;  // a PrefixIndex entry
inline constexpr int32_t kNoId = -1;

enum class CopyKind : uint8_t { kNone, kDemote, kPromote };

// One block of the arena. `live`: it holds something (referenced, cached or in flight); else it is
// free, retiring or a hole (its memory is not mapped, or not wholly).
struct Block {
  int32_t refs = 0;               // running requests that hold it
  NodeId node = kNoId;            // the published content in it; kNoId: private to one request
  int32_t free_index = kNoId;     // its place in the free list
  HostBlockId copy_host = kNoId;  // the other end of the copy in flight
  CopyKind copy = CopyKind::kNone;
  bool live = false;
  bool hole = true;
  bool leaving = false;   // counted as one that frees itself when its copy has ended
  bool retiring = false;  // its slot is being emptied: never allocated
  StepId last_use = 0;    // latest plan that may touch it, set when it becomes free
};

// Ids only, no memory. Never evicts: allocate() needs a free block. Everything is O(1) but the
// calls about slots. One thread.
class BlockPool {
 public:
  // Only the base pool exists at first; slots join by map().
  explicit BlockPool(const MemoryLayout& layout);

  int free_blocks() const { return static_cast<int>(free_.size()); }
  int total_blocks() const { return total_; }  // published, retiring ones included
  int size() const { return static_cast<int>(blocks_.size()); }
  Block& at(BlockId id) { return blocks_[id]; }
  const Block& at(BlockId id) const { return blocks_[id]; }

  BlockId allocate();
  void take(BlockId id);  // this one, free or retiring
  // `last_use`: the latest plan that may read or write it.
  void free(BlockId id, StepId last_use);

  const std::vector<bool>& mapped() const { return mapped_; }
  int mapped_slots() const { return mapped_slots_; }
  // The unmapped slots that come next, lowest first.
  std::vector<PoolSlot> next_unmapped(int count) const;
  // The `count` mapped slots with the fewest live blocks.
  std::vector<PoolSlot> cheapest_to_empty(int count) const;
  // Publishes the blocks that come to be whole.
  void map(std::span<const PoolSlot> slots);
  // Blocks that go with `slots`: none of them is allocated any more.
  std::vector<BlockId> retire(std::span<const PoolSlot> slots);
  void cancel_retire(std::span<const BlockId> blocks);
  // No block of these slots is live.
  void unmap(std::span<const PoolSlot> slots);

  // Throws InvariantError when free list, flags and counters disagree.
  void check_invariants() const;

 private:
  void push_free(BlockId id);
  void remove_free(BlockId id);
  // First and last slot that the block touches; kNoId, kNoId in the base pool.
  std::pair<PoolSlot, PoolSlot> slots_of(BlockId id) const;
  void count_live(BlockId id, int change);

  const MemoryLayout& layout_;
  std::vector<Block> blocks_;
  std::vector<BlockId> free_;
  std::vector<bool> mapped_;
  std::vector<int> live_in_slot_;
  int mapped_slots_ = 0;
  int total_ = 0;
};

}  // namespace vamp
