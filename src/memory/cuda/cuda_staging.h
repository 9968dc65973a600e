// Brings a layer's given-up experts back for the length of its MoE, by the copy engine.
#pragma once

#include <array>
#include <deque>
#include <vector>

#include "memory/cuda/cuda_handles.h"
#include "memory/cuda/pinned_experts.h"
#include "memory/hbm_partition.h"

namespace vamp {

struct CudaStagingCounters {
  size_t staged_bytes = 0;  // copied from host memory
  double stall = 0;         // microseconds for which the compute stream waited
  double copy = 0;          // microseconds for which the copy engine was busy with it
};

// Whole-region staging in eager steps: the copy for a layer goes to the experts' own addresses,
// behind which the bank of the layer's parity lies, on a copy stream. A region is one copy, as it
// is one run of bytes on both sides. Sizes depend on the boundary, so none of this belongs into a
// captured graph (ExpertGather does).
//
// One MoE layer's life, all calls on the executor's thread, which waits for nothing:
//
//   begin_region(l)      queues the copy; issued at once, or when the bank's layer is released
//   wait(l, stream)      what follows on `stream` sees the layer's experts
//   release(l, stream)   once what is on `stream` so far has run, the bank may be overwritten
//
// wait must come after release of the layer that used the bank before: begin all layers at the
// step's start, then go through them in order. All is ordered by events between whole kernels and
// copies; a kernel that uses experts must not be launched so that it overlaps its predecessor
// (programmatic dependent launch): through two addresses of the same memory the order within one
// kernel is undefined.
class CudaStaging {
 public:
  CudaStaging(const HbmPartition& partition, const PinnedExperts& source);

  void begin_region(int moe_layer);
  void wait(int moe_layer, cudaStream_t stream);
  void release(int moe_layer, cudaStream_t stream);

  // Counters since the last call. The compute stream must have finished the step. VAMP_CHECKs that
  // every begun layer was released; only then may the boundary move.
  CudaStagingCounters end_step();

 private:
  enum class State { kIdle, kQueued, kCopying };
  struct Layer {
    State state = State::kIdle;
    bool waited = false;  // in this step
    size_t bytes = 0;
    CudaEvent start{CudaEvent::Kind::kTiming}, end{CudaEvent::Kind::kTiming};
    CudaEvent wait_start{CudaEvent::Kind::kTiming}, wait_end{CudaEvent::Kind::kTiming};
  };
  void issue(int moe_layer);
  void issue_queued();

  const HbmPartition& partition_;
  const PinnedExperts& source_;
  CudaStream copies_;
  std::vector<Layer> layers_;
  std::deque<int> queue_;
  std::array<bool, 2> bank_in_use_{};
  std::array<CudaEvent, 2> bank_free_;
};

}  // namespace vamp
