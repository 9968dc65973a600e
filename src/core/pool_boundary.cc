#include "core/pool_boundary.h"

#include <algorithm>

#include "base/error.h"

namespace vamp {
namespace {

// The policy looks no further ahead than this many increments at once.
constexpr int kMaxIncrements = 64;

}  // namespace

PoolBoundary::PoolBoundary(const MemoryLayout& layout, BlockManager& blocks, int max_groups_out)
    : layout_(layout),
      blocks_(blocks),
      max_groups_out_(std::clamp(max_groups_out < 0 ? layout.max_groups_out() : max_groups_out,
                                 layout.min_groups_out, layout.max_groups_out())),
      groups_out_(layout.min_groups_out) {
  const size_t slots = static_cast<size_t>(layout.pool_slots(max_groups_out_));
  max_blocks_ = static_cast<int>((layout.base_pool_bytes + slots * layout.group_bytes()) /
                                 layout.block_bytes);
  blocks_.pool().map(blocks_.pool().next_unmapped(layout.pool_slots(groups_out_)));
}

int PoolBoundary::raise(int groups, StepPlan& plan) {
  const int target = std::min(groups_out_ + groups, max_groups_out_);
  if (target <= groups_out_ || lowering_ ||
      (plan.boundary && !plan.boundary->unmap_slots.empty())) {
    return 0;
  }
  BlockPool& pool = blocks_.pool();
  const int before = pool.total_blocks();
  const std::vector<PoolSlot> slots =
      pool.next_unmapped(layout_.pool_slots(target) - pool.mapped_slots());
  pool.map(slots);
  if (!plan.boundary) plan.boundary.emplace();
  plan.boundary->groups_out = target;
  plan.boundary->order_version = layout_.order.version;
  plan.boundary->map_slots.insert(plan.boundary->map_slots.end(), slots.begin(), slots.end());
  groups_out_ = target;
  gains_valid_ = false;
  return pool.total_blocks() - before;
}

bool PoolBoundary::lower(int groups) {
  const int target = std::max(groups_out_ - groups, layout_.min_groups_out);
  if (lowering_ || target >= groups_out_) return false;
  BlockPool& pool = blocks_.pool();
  Lowering lowering;
  lowering.target = target;
  lowering.slots = pool.cheapest_to_empty(pool.mapped_slots() - layout_.pool_slots(target));
  lowering.blocks = pool.retire(lowering.slots);
  // What lives there needs a free block elsewhere, or the coldest blocks go, wherever they are.
  int short_by = live(lowering.blocks) - blocks_.free_blocks();
  while (short_by > 0 && blocks_.drop_coldest(short_by, 0) > 0) {
    short_by = live(lowering.blocks) - blocks_.free_blocks();
  }
  if (short_by > 0) {
    pool.cancel_retire(lowering.blocks);
    return false;
  }
  lowering_ = std::move(lowering);
  return true;
}

void PoolBoundary::continue_lowering(StepPlan& plan) {
  if (!lowering_) return;
  blocks_.relocate(lowering_->blocks, plan.move_blocks);
  if (!blocks_.drained(lowering_->blocks)) return;
  blocks_.pool().unmap(lowering_->slots);
  plan.boundary = BoundaryMove{.groups_out = lowering_->target,
                               .order_version = layout_.order.version,
                               .map_slots = {},
                               .unmap_slots = std::move(lowering_->slots)};
  groups_out_ = lowering_->target;
  gains_valid_ = false;
  lowering_.reset();
}

void PoolBoundary::cancel_lowering() {
  if (!lowering_) return;
  blocks_.pool().cancel_retire(lowering_->blocks);
  lowering_.reset();
}

void PoolBoundary::undo(const BoundaryMove& move, int groups_before) {
  VAMP_CHECK(!lowering_, "a boundary move is undone during another");
  blocks_.pool().unmap(move.map_slots);
  blocks_.pool().map(move.unmap_slots);
  groups_out_ = groups_before;
  gains_valid_ = false;
}

int PoolBoundary::live(const std::vector<BlockId>& blocks) const {
  return static_cast<int>(std::count_if(blocks.begin(), blocks.end(),
                                        [&](BlockId id) { return blocks_.pool().at(id).live; }));
}

void PoolBoundary::describe(bool can_move, BoundaryState& state) const {
  state.groups_out = groups_out_;
  state.min_groups_out = layout_.min_groups_out;
  state.max_groups_out = max_groups_out_;
  state.increment_groups = layout_.increment_groups;
  state.shards_per_group = layout_.shards_per_group;
  state.experts_per_layer = layout_.experts;
  state.group_bytes = layout_.group_bytes();
  state.block_bytes = layout_.block_bytes;
  state.can_move = can_move && !lowering_;
  if (!gains_valid_) refresh_gains();
  state.blocks_gained = gains_;
}

void PoolBoundary::refresh_gains() const {
  gains_.clear();
  gains_valid_ = true;
  const BlockPool& pool = blocks_.pool();
  std::vector<bool> mapped = pool.mapped();
  std::vector<PoolSlot> slots =
      pool.next_unmapped(layout_.pool_slots(max_groups_out_) - pool.mapped_slots());
  size_t next = 0;
  int gained = 0;
  for (int n = groups_out_;
       n < max_groups_out_ && static_cast<int>(gains_.size()) < kMaxIncrements;) {
    n = std::min(n + layout_.increment_groups, max_groups_out_);
    const size_t end = static_cast<size_t>(layout_.pool_slots(n) - pool.mapped_slots());
    for (; next < end; ++next) {
      mapped[slots[next]] = true;
      gained += static_cast<int>(layout_.blocks_touching(slots[next], mapped).size());
    }
    gains_.push_back(gained);
  }
}

std::vector<int> PoolBoundary::blocks_lost() const {
  std::vector<int> lost;
  const int slots = blocks_.pool().mapped_slots();
  for (int n = groups_out_;
       n > layout_.min_groups_out && static_cast<int>(lost.size()) < kMaxIncrements;) {
    n = std::max(n - layout_.increment_groups, layout_.min_groups_out);
    const size_t bytes = static_cast<size_t>(slots - layout_.pool_slots(n)) * layout_.group_bytes();
    lost.push_back(static_cast<int>((bytes + layout_.block_bytes - 1) / layout_.block_bytes));
  }
  return lost;
}

}  // namespace vamp
