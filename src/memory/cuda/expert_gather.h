// Brings the given-up experts that tokens chose back, inside a captured graph.
#pragma once

#include <vector>

#include "memory/cuda/cuda_handles.h"
#include "memory/cuda/link_copy.h"
#include "memory/cuda/pinned_experts.h"
#include "memory/hbm_partition.h"

namespace vamp {

// A kernel that reads pinned host memory and writes the experts' own addresses, behind which the
// bank of the layer's parity lies. Which experts are given up and which were chosen it reads from
// device memory, so nothing of the boundary or the batch is baked into a graph that holds it. Eight
// blocks fill the link and leave the other multiprocessors to the GEMMs beside it.
//
// In a graph: router of layer l → gather (on the same stream, or forked from it) → MoE of layer l.
// The bank's last user, layer l - 2, lies before the router, so it needs no event. An expert's
// matrices lie together, so one launch brings both. No programmatic dependent launch over it.
//
// One thread; one GPU.
class ExpertGather {
 public:
  ExpertGather(const HbmPartition& partition, const PinnedExperts& source,
               LinkCopyShape shape = {});

  // Tells the device where the boundary is. After each move of it and before the next step, on that
  // step's stream (not inside a graph).
  void update(cudaStream_t stream);

  // Copies the layer's given-up experts e with expert_start[e + 1] > expert_start[e] ([experts +
  // 1], device memory), which is how the router leaves those that some token chose.
  void gather(int moe_layer, const int32_t* expert_start, cudaStream_t stream);

  // Where the device reads which of a layer's experts is the first given up ([1], device memory).
  const int32_t* first_given_up(int moe_layer) const { return first_given_up_.get() + moe_layer; }

  // Bytes copied since the last call; waits for `stream`.
  size_t take_staged_bytes(cudaStream_t stream);

 private:
  const HbmPartition& partition_;
  const PinnedExperts& source_;
  LinkCopyShape shape_;
  DeviceArray<int32_t> first_given_up_;  // by MoE layer
  DeviceArray<unsigned long long> staged_bytes_;
  PinnedBuffer first_given_up_host_;
};

}  // namespace vamp
