// The expert weights' side of the boundary: addresses fixed for good, frames that come and go.
#pragma once

#include <vector>

#include "memory/extent.h"
#include "model/memory_layout.h"

namespace vamp {

// Groups at the layer's end that may ever be given up, in any order.
int movable_groups(const MemoryLayout& layout, int moe_layer);

// Expert shards of all MoE layers. Per layer one contiguous virtual range at an address that never
// changes, so a kernel that finds an expert by a stride needs no pointer table and a captured graph
// stays valid at every boundary. Each expert's gate+up [2I/tp, H] and down [H, I/tp] lie together
// (ExpertGeometry): a group is one handle, and what a move costs is a matter of handles.
//
// A layer's head never moves and is one extent. Its tail, as many groups as may ever be given up,
// is one frame a group. A group that is given up has no frame of its own; its address then shows
// the staging bank's frame of its place (see StagingBanks), never a hole.
//
// It owns ranges and frames and says who is where; HbmPartition makes the driver calls. One thread.
class ExpertStore {
 public:
  // Reserves the ranges. No memory yet.
  ExpertStore(const MemoryLayout& layout, VirtualMemory& memory);
  ~ExpertStore();
  ExpertStore(const ExpertStore&) = delete;
  ExpertStore& operator=(const ExpertStore&) = delete;

  // First byte of an expert's gate+up; layout.gate_up_shard_bytes further begins its down matrix,
  // layout.shard_bytes() further the next expert.
  std::byte* expert(int moe_layer, int expert) const;
  std::byte* group(GroupId id) const;

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
  const Extent& frame(GroupId id) const;  // empty when given up

  // Bookkeeping of a move whose driver calls have succeeded. offload takes the layer's last
  // resident group, restore its first given-up one.
  Extent offload(GroupId id);
  void restore(GroupId id, Extent frame);

  // At start: groups given up from the beginning are offloaded while they have no frame yet, then
  // the others get theirs, and each layer the part that never moves.
  void set_frame(GroupId id, Extent frame);
  void set_head(int moe_layer, Extent extent);
  const Extent& head(int moe_layer) const { return layers_[moe_layer].head; }

 private:
  struct Layer {
    std::byte* base = nullptr;
    Extent head;
    std::vector<Extent> tail;  // [group - head_groups]
    int out = 0;
  };
  size_t layer_bytes() const { return layout_.group_bytes() * layout_.groups_per_layer; }
  Extent& tail_frame(GroupId id);
  void release_ranges() noexcept;

  const MemoryLayout& layout_;  // the partition's; its order is not used here
  VirtualMemory& memory_;
  std::vector<Layer> layers_;
};

}  // namespace vamp
