// The boundary as the scheduler sees it: how many expert groups are given up, and what it does to
// the pool.
#pragma once

#include <optional>
#include <vector>

#include "core/block_manager.h"
#include "core/reclaim_policy.h"

namespace vamp {

// Raising takes effect in the plan that says so: its new blocks serve allocations of the same step.
// Lowering takes a while: slots are chosen, their blocks retire and move, and when no plan under
// way uses them any more a plan unmaps them. Until then it can be called off. One thread.
class PoolBoundary {
 public:
  // Starts at layout.min_groups_out; never goes beyond `max_groups_out`.
  PoolBoundary(const MemoryLayout& layout, BlockManager& blocks, int max_groups_out);

  int groups_out() const { return groups_out_; }
  int max_groups_out() const { return max_groups_out_; }
  bool lowering() const { return lowering_.has_value(); }
  // Blocks that exist when the boundary is as high as it may be.
  int max_blocks() const { return max_blocks_; }

  // Up by `groups`, as far as it goes; extends the plan's move if it has one. Returns the blocks
  // won.
  int raise(int groups, StepPlan& plan);
  // Starts to come down by `groups`: drops as many of the coldest blocks as must go. False, with
  // nothing changed but those, when running requests need the room.
  bool lower(int groups);
  // Moves blocks out of the way; once they are, unmaps.
  void continue_lowering(StepPlan& plan);
  void cancel_lowering();
  // A plan with this move was not carried out.
  void undo(const BoundaryMove& move, int groups_before);

  // `can_move` is the caller's: raising may be barred for a while.
  void describe(bool can_move, BoundaryState& state) const;
  // What coming down by k increments takes away, about, k = 1, 2, ...
  std::vector<int> blocks_lost() const;

 private:
  struct Lowering {
    int target = 0;
    std::vector<PoolSlot> slots;
    std::vector<BlockId> blocks;
  };
  int live(const std::vector<BlockId>& blocks) const;
  void refresh_gains() const;

  const MemoryLayout& layout_;
  BlockManager& blocks_;
  const int max_groups_out_;
  int max_blocks_ = 0;
  int groups_out_ = 0;
  std::optional<Lowering> lowering_;
  mutable std::vector<int> gains_;  // of describe(), until the boundary moves
  mutable bool gains_valid_ = false;
};

}  // namespace vamp
