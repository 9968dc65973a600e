// The host's copy of experts for a GPU: pinned where experts may be given up.
#pragma once

#include <vector>

#include "memory/cuda/cuda_handles.h"
#include "memory/host_experts.h"
#include "model/memory_layout.h"

namespace vamp {

// Pinned copies of every expert that may ever be given up, made once at start from `source` in
// device layout, so that a layer's given-up experts are one copy; moving the boundary repacks
// nothing. Other experts are read from `source`, through ordinary host memory: they are loaded
// once.
//
// The HostExperts method copies to *device* addresses, on a stream of this object, and returns when
// the bytes have arrived. Pinning takes 0.7 s a GiB. One thread, the device's current one.
class PinnedExperts final : public HostExperts {
 public:
  // `source` must outlive this. Throws Error if so much memory can't be pinned.
  PinnedExperts(const MemoryLayout& layout, const HostExperts& source);

  void copy(int moe_layer, int first, int count, std::byte* to) const override;

  // Experts of the layer from this one on are pinned.
  int first_pinned(int moe_layer) const { return layers_[moe_layer].first; }
  // The pinned copy of one of them, which the device may read: expert e + 1 follows e.
  const std::byte* expert(int moe_layer, int expert) const;
  size_t pinned_bytes() const;

 private:
  struct Layer {
    int first = 0;
    PinnedBuffer experts;
  };
  void copy_bytes(const std::byte* from, size_t bytes, std::byte* to) const;

  const ExpertGeometry layout_;
  const HostExperts& source_;
  std::vector<Layer> layers_;
  CudaStream stream_;
};

}  // namespace vamp
