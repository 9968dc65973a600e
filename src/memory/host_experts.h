// Where expert weights come from: the copy in host memory that is never given up.
#pragma once

#include <cstddef>

namespace vamp {

// The host's copy of all expert shards of one rank, e.g. a mapped checkpoint. Copies whole shards
// in device layout, `count` experts from `first` on of MoE layer `moe_layer`, to `to`, which is an
// address of the backend this copy was made for. Strides are MemoryLayout::gate_up_shard_bytes and
// down_shard_bytes; what a stride has beyond the matrix (padding) is written as zeros.
//
// gate_up: per expert [2I/tp, H], the gate's rows first. down: per expert [H, I/tp].
//
// Returns when the bytes have arrived. Throws Error if they can't be read. Called from the engine's
// thread (loading, restoring) and from the copy thread (staging), also at the same time.
class HostExperts {
 public:
  virtual ~HostExperts() = default;
  virtual void copy_gate_up(int moe_layer, int first, int count, std::byte* to) const = 0;
  virtual void copy_down(int moe_layer, int first, int count, std::byte* to) const = 0;
};

}  // namespace vamp
