// The expert weights' side of the boundary: addresses fixed for good, frames that come and go.
#pragma once

#include <vector>

#include "memory/extent.h"
#include "model/memory_layout.h"

namespace vamp {

// Groups at the layer's end that may ever be given up, in any order.
int movable_groups(const MemoryLayout& layout, int moe_layer);

// Expert shards of all MoE layers. Per layer two virtual ranges, gate+up [E, 2I/tp, H] and down
// [E, H, I/tp], each contiguous and at an address that never changes, so a kernel that indexes rows
// as expert * N + n needs no pointer table and a captured graph stays valid at every boundary.
//
// A layer's head never moves: one extent for each of its two matrices. Its tail, as many groups as
// may ever be given up, is one frame a group. A group that is given up has no frame of its own; its
// address then shows the staging bank's frame of its place (see StagingBanks), never a hole.
//
// It owns ranges and frames and says who is where; HbmPartition makes the driver calls. One thread.
class ExpertStore {
 public:
  // Reserves the ranges. No memory yet.
  ExpertStore(const MemoryLayout& layout, VirtualMemory& memory);
  ~ExpertStore();
  ExpertStore(const ExpertStore&) = delete;
  ExpertStore& operator=(const ExpertStore&) = delete;

  // First byte of expert 0. Expert e: + e * layout.gate_up_shard_bytes (down_shard_bytes).
  std::byte* gate_up(int moe_layer) const { return layers_[moe_layer].gate_up; }
  std::byte* down(int moe_layer) const { return layers_[moe_layer].down; }
  std::byte* gate_up(GroupId id) const;
  std::byte* down(GroupId id) const;

  // Groups of the layer given up: always its last ones.
  int groups_out(int moe_layer) const { return layers_[moe_layer].out; }
  // Experts from this one on are given up and need staging; layout.experts if none is.
  int first_given_up_expert(int moe_layer) const;
  int experts_out(int moe_layer) const;

  // Groups at the layer's end that may ever be given up.
  int movable_groups(int moe_layer) const {
    return static_cast<int>(layers_[moe_layer].tail.size());
  }
  int head_groups(int moe_layer) const;
  bool is_movable(GroupId id) const { return id.group >= head_groups(id.moe_layer); }
  const Frame& frame(GroupId id) const;  // empty when given up

  // Bookkeeping of a move whose driver calls have succeeded. offload takes the layer's last
  // resident group, restore its first given-up one.
  Frame offload(GroupId id);
  void restore(GroupId id, Frame frame);

  // At start: groups given up from the beginning are offloaded while they have no frame yet, then
  // the others get theirs, and each layer the part that never moves.
  void set_frame(GroupId id, Frame frame);
  void set_head(int moe_layer, Extent gate_up, Extent down);
  const Extent& head_gate_up(int moe_layer) const { return layers_[moe_layer].head_gate_up; }
  const Extent& head_down(int moe_layer) const { return layers_[moe_layer].head_down; }

 private:
  struct Layer {
    std::byte* gate_up = nullptr;
    std::byte* down = nullptr;
    Extent head_gate_up, head_down;
    std::vector<Frame> tail;  // [group - head_groups]
    int out = 0;
  };
  Frame& tail_frame(GroupId id);
  void release_ranges() noexcept;

  const MemoryLayout& layout_;  // the partition's; its order is not used here
  VirtualMemory& memory_;
  std::vector<Layer> layers_;
};

}  // namespace vamp
