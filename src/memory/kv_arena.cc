#include "memory/kv_arena.h"

#include "base/error.h"

namespace vamp {

KvArena::KvArena(const MemoryLayout& layout, VirtualMemory& memory)
    : memory_(memory),
      block_bytes_(layout.block_bytes),
      base_pool_bytes_(layout.base_pool_bytes),
      slot_bytes_(layout.group_bytes()),
      frames_(static_cast<size_t>(std::max(0, layout.max_pool_slots()))) {
  if (bytes() > 0) base_ = memory.reserve(bytes());
}

KvArena::~KvArena() {
  try {
    if (base_) memory_.release(base_, bytes());
  } catch (const std::exception&) {
    // The addresses stay taken until the process ends; nobody uses them.
  }
}

std::byte* KvArena::slot(PoolSlot slot) const {
  return base_ + base_pool_bytes_ + static_cast<size_t>(slot) * slot_bytes_;
}

bool KvArena::block_mapped(BlockId id) const {
  const size_t begin = static_cast<size_t>(id) * block_bytes_;
  const size_t end = begin + block_bytes_;
  if (id < 0 || end > bytes()) return false;
  if (end <= base_pool_bytes_) return true;
  const size_t first = begin < base_pool_bytes_ ? 0 : (begin - base_pool_bytes_) / slot_bytes_;
  const size_t last = (end - 1 - base_pool_bytes_) / slot_bytes_;
  for (size_t slot = first; slot <= last; ++slot)
    if (!frames_[slot]) return false;
  return true;
}

int KvArena::mapped_blocks() const {
  const auto blocks = static_cast<BlockId>(bytes() / block_bytes_);
  int mapped = 0;
  for (BlockId id = 0; id < blocks; ++id) mapped += block_mapped(id);
  return mapped;
}

std::vector<bool> KvArena::mapped() const {
  std::vector<bool> mapped(frames_.size());
  for (size_t slot = 0; slot < frames_.size(); ++slot)
    mapped[slot] = static_cast<bool>(frames_[slot]);
  return mapped;
}

void KvArena::put(PoolSlot slot, Extent frame) {
  Extent& place = frames_.at(static_cast<size_t>(slot));
  VAMP_CHECK(!place, "pool slot {} is mapped already", slot);
  frame.hand_to(Holder::kKvArena);
  place = std::move(frame);
  ++mapped_slots_;
}

Extent KvArena::take(PoolSlot slot) {
  Extent& place = frames_.at(static_cast<size_t>(slot));
  VAMP_CHECK(place, "pool slot {} is a hole", slot);
  --mapped_slots_;
  return std::move(place);
}

void KvArena::set_base_pool(Extent extent) {
  extent.hand_to(Holder::kKvArena);
  base_pool_ = std::move(extent);
}

}  // namespace vamp
