// Where expert weights come from: the copy in host memory that is never given up.
#pragma once

#include <cstddef>

namespace vamp {

// The host's copy of all expert shards of one rank, e.g. a mapped checkpoint. Copies whole shards
// in device layout, `count` experts from `first` on of MoE layer `moe_layer`, to `to`, which is an
// address of the backend this copy was made for. Experts follow each other at
// MemoryLayout::shard_bytes(): the gate's rows and the up rows [2I/tp, H], gate_up_shard_bytes
// behind their first byte down [H, I/tp]. Padding is written as zeros.
//
// Returns when the bytes have arrived. Throws Error if they can't be read. Called from the engine's
// thread (loading, restoring) and from the copy thread (staging), also at the same time.
class HostExperts {
 public:
  virtual ~HostExperts() = default;
  virtual void copy(int moe_layer, int first, int count, std::byte* to) const = 0;
};

}  // namespace vamp
