// The KV cache's side of the boundary.
#pragma once

#include <vector>

#include "memory/extent.h"
#include "model/memory_layout.h"

namespace vamp {

// One virtual range, base pool | slot 0 | slot 1 | ... without gaps, block-major: block b lies at
// base + b * block_bytes with all layers of its tokens together, so a block is one contiguous copy.
// The base pool is mapped for good. A slot holds one frame or is a hole; any may come and go. A
// block may straddle two slots and exists only while all its bytes are mapped (the scheduler's
// block manager knows which do, by the same geometry).
//
// It owns the range, the base pool and the slots' frames and says who is where; HbmPartition makes
// the driver calls. One thread.
class KvArena {
 public:
  // Reserves the range for all slots there can ever be. No memory yet.
  KvArena(const MemoryLayout& layout, VirtualMemory& memory);
  ~KvArena();
  KvArena(const KvArena&) = delete;
  KvArena& operator=(const KvArena&) = delete;

  std::byte* base() const { return base_; }
  std::byte* block(BlockId id) const { return base_ + static_cast<size_t>(id) * block_bytes_; }
  bool block_mapped(BlockId id) const;  // every byte of it
  int mapped_blocks() const;            // blocks of which every byte is mapped

  int slots() const { return static_cast<int>(frames_.size()); }
  int mapped_slots() const { return mapped_slots_; }
  std::byte* slot(PoolSlot slot) const;
  const Extent& frame(PoolSlot slot) const { return frames_.at(static_cast<size_t>(slot)); }
  std::vector<bool> mapped() const;

  // Bookkeeping of a move whose driver calls have succeeded.
  void put(PoolSlot slot, Extent frame);
  Extent take(PoolSlot slot);

  void set_base_pool(Extent extent);  // once, at start; empty if the layout has none
  const Extent& base_pool() const { return base_pool_; }

 private:
  size_t bytes() const { return base_pool_bytes_ + frames_.size() * slot_bytes_; }

  VirtualMemory& memory_;
  size_t block_bytes_, base_pool_bytes_, slot_bytes_;
  std::byte* base_ = nullptr;
  Extent base_pool_;
  std::vector<Extent> frames_;
  int mapped_slots_ = 0;
};

}  // namespace vamp
