// The host's copy of experts for a GPU: pinned where experts may be given up.
#pragma once

#include <vector>

#include "memory/cuda/cuda_handles.h"
#include "memory/host_experts.h"
#include "model/memory_layout.h"

namespace vamp {

// Pinned copies of every expert that may ever be given up, made once at start from `source` in
// device layout; moving the boundary repacks nothing. Other experts are read from `source`, through
// ordinary host memory: they are loaded once.
//
// The HostExperts methods copy to *device* addresses, on a stream of this object, and return when
// the bytes have arrived. Pinning takes 0.7 s a GiB. One thread, the device's current one.
class PinnedExperts final : public HostExperts {
 public:
  // `source` must outlive this. Throws Error if so much memory can't be pinned.
  PinnedExperts(const MemoryLayout& layout, const HostExperts& source);

  void copy_gate_up(int moe_layer, int first, int count, std::byte* to) const override;
  void copy_down(int moe_layer, int first, int count, std::byte* to) const override;

  // Experts of the layer from this one on are pinned.
  int first_pinned(int moe_layer) const { return layers_[moe_layer].first; }
  // The pinned copy of one of them, which the device may read: expert e + 1 follows e.
  const std::byte* gate_up(int moe_layer, int expert) const;
  const std::byte* down(int moe_layer, int expert) const;
  size_t pinned_bytes() const;

 private:
  struct Layer {
    int first = 0;
    PinnedBuffer gate_up, down;
  };
  enum class Matrix { kGateUp, kDown };
  size_t stride(Matrix matrix) const {
    return matrix == Matrix::kGateUp ? layout_.gate_up_shard_bytes : layout_.down_shard_bytes;
  }
  void read_source(Matrix matrix, int moe_layer, int first, int count, std::byte* to) const;
  void copy(Matrix matrix, int moe_layer, int first, int count, std::byte* to) const;

  const ExpertGeometry layout_;
  const HostExperts& source_;
  std::vector<Layer> layers_;
  CudaStream stream_;
};

}  // namespace vamp
