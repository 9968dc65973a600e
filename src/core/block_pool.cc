#include "core/block_pool.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace vamp {

BlockPool::BlockPool(const MemoryLayout& layout)
    : layout_(layout),
      blocks_(layout.max_blocks()),
      mapped_(layout.max_pool_slots(), false),
      live_in_slot_(layout.max_pool_slots(), 0) {
  free_.reserve(blocks_.size());
  total_ = layout.base_blocks();
  // The last id goes in first, so that low ids are handed out first and the slots stay empty
  // longest.
  for (BlockId id = total_ - 1; id >= 0; --id) {
    blocks_[id].hole = false;
    push_free(id);
  }
}

BlockId BlockPool::allocate() {
  VAMP_CHECK(!free_.empty(), "allocation without a free block");
  const BlockId id = free_.back();
  take(id);
  return id;
}

void BlockPool::take(BlockId id) {
  Block& block = blocks_[id];
  VAMP_CHECK(!block.live && !block.hole, "block {} is taken while in use", id);
  if (block.free_index != kNoId) remove_free(id);
  block.live = true;
  count_live(id, 1);
}

void BlockPool::free(BlockId id, StepId last_use) {
  Block& block = blocks_[id];
  VAMP_CHECK(block.live && block.refs == 0 && block.node == kNoId && block.copy == CopyKind::kNone,
             "block {} freed while in use", id);
  block.live = false;
  block.last_use = last_use;
  count_live(id, -1);
  if (!block.retiring) push_free(id);
}

std::vector<PoolSlot> BlockPool::next_unmapped(int count) const {
  std::vector<PoolSlot> slots;
  for (PoolSlot slot = 0; static_cast<int>(slots.size()) < count; ++slot) {
    VAMP_CHECK(slot < static_cast<PoolSlot>(mapped_.size()), "no {} unmapped pool slots left",
               count);
    if (!mapped_[slot]) slots.push_back(slot);
  }
  return slots;
}

std::vector<PoolSlot> BlockPool::cheapest_to_empty(int count) const {
  std::vector<PoolSlot> slots;
  for (PoolSlot slot = 0; slot < static_cast<PoolSlot>(mapped_.size()); ++slot) {
    if (mapped_[slot]) slots.push_back(slot);
  }
  VAMP_CHECK(count <= static_cast<int>(slots.size()), "{} slots to empty of {}", count,
             slots.size());
  // Of equals the highest: the arena stays compact.
  std::partial_sort(slots.begin(), slots.begin() + count, slots.end(), [&](PoolSlot a, PoolSlot b) {
    return live_in_slot_[a] != live_in_slot_[b] ? live_in_slot_[a] < live_in_slot_[b] : a > b;
  });
  slots.resize(count);
  return slots;
}

void BlockPool::map(std::span<const PoolSlot> slots) {
  std::vector<BlockId> appeared;
  for (PoolSlot slot : slots) {
    VAMP_CHECK(!mapped_[slot], "slot {} is mapped already", slot);
    mapped_[slot] = true;
    ++mapped_slots_;
    for (BlockId id : layout_.blocks_touching(slot, mapped_)) appeared.push_back(id);
  }
  std::sort(appeared.rbegin(), appeared.rend());
  for (BlockId id : appeared) {
    VAMP_CHECK(blocks_[id].hole && !blocks_[id].live, "block {} appears twice", id);
    blocks_[id].hole = false;
    push_free(id);
  }
  total_ += static_cast<int>(appeared.size());
}

std::vector<BlockId> BlockPool::retire(std::span<const PoolSlot> slots) {
  std::vector<BlockId> going;
  std::vector<bool> mapped = mapped_;
  for (PoolSlot slot : slots) {
    for (BlockId id : layout_.blocks_touching(slot, mapped)) going.push_back(id);
    mapped[slot] = false;
  }
  for (BlockId id : going) {
    VAMP_CHECK(!blocks_[id].retiring && !blocks_[id].hole, "block {} retires twice", id);
    blocks_[id].retiring = true;
    if (!blocks_[id].live) remove_free(id);
  }
  return going;
}

void BlockPool::cancel_retire(std::span<const BlockId> blocks) {
  for (BlockId id : blocks) {
    blocks_[id].retiring = false;
    if (!blocks_[id].live) push_free(id);
  }
}

void BlockPool::unmap(std::span<const PoolSlot> slots) {
  for (PoolSlot slot : slots) {
    VAMP_CHECK(mapped_[slot], "slot {} is not mapped", slot);
    for (BlockId id : layout_.blocks_touching(slot, mapped_)) {
      Block& block = blocks_[id];
      VAMP_CHECK(!block.live, "block {} is live in slot {}, which leaves the pool", id, slot);
      if (block.free_index != kNoId) remove_free(id);
      block.retiring = false;
      block.hole = true;
      --total_;
    }
    mapped_[slot] = false;
    --mapped_slots_;
  }
}

void BlockPool::push_free(BlockId id) {
  blocks_[id].free_index = static_cast<int32_t>(free_.size());
  free_.push_back(id);
}

void BlockPool::remove_free(BlockId id) {
  const int32_t index = blocks_[id].free_index;
  free_[index] = free_.back();
  blocks_[free_[index]].free_index = index;
  free_.pop_back();
  blocks_[id].free_index = kNoId;
}

std::pair<PoolSlot, PoolSlot> BlockPool::slots_of(BlockId id) const {
  const size_t begin = static_cast<size_t>(id) * layout_.block_bytes;
  const size_t end = begin + layout_.block_bytes;
  if (end <= layout_.base_pool_bytes) return {kNoId, kNoId};
  const size_t group = layout_.group_bytes();
  const size_t first =
      begin <= layout_.base_pool_bytes ? 0 : (begin - layout_.base_pool_bytes) / group;
  return {static_cast<PoolSlot>(first),
          static_cast<PoolSlot>((end - 1 - layout_.base_pool_bytes) / group)};
}

void BlockPool::count_live(BlockId id, int change) {
  const auto [first, last] = slots_of(id);
  if (first == kNoId) return;
  for (PoolSlot slot = first; slot <= last; ++slot) live_in_slot_[slot] += change;
}

void BlockPool::check_invariants() const {
  int published = 0, listed = 0;
  std::vector<int> live(live_in_slot_.size(), 0);
  for (BlockId id = 0; id < size(); ++id) {
    const Block& block = blocks_[id];
    if (!block.hole) ++published;
    VAMP_CHECK(!block.hole || (!block.live && !block.retiring), "hole {} is in use", id);
    const bool should_be_listed = !block.hole && !block.live && !block.retiring;
    VAMP_CHECK(should_be_listed == (block.free_index != kNoId), "block {} and the free list", id);
    if (block.free_index != kNoId) {
      ++listed;
      VAMP_CHECK(free_[block.free_index] == id, "free list entry of block {}", id);
    }
    VAMP_CHECK(
        block.live || (block.refs == 0 && block.node == kNoId && block.copy == CopyKind::kNone),
        "free block {} is held", id);
    const auto [first, last] = slots_of(id);
    if (first == kNoId) continue;
    for (PoolSlot slot = first; slot <= last; ++slot) {
      VAMP_CHECK(block.hole || mapped_[slot], "block {} lies in unmapped slot {}", id, slot);
      live[slot] += block.live;
    }
  }
  VAMP_CHECK(published == total_, "{} published blocks, counted {}", published, total_);
  VAMP_CHECK(listed == free_blocks(), "free list has {} entries, {} blocks", free_.size(), listed);
  VAMP_CHECK(live == live_in_slot_, "live blocks by slot");
}

}  // namespace vamp
