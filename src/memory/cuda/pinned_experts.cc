#include "memory/cuda/pinned_experts.h"

#include <algorithm>

#include "memory/expert_store.h"

namespace vamp {
namespace {

constexpr size_t kBounceBytes = 16 * kMiB;

}  // namespace

PinnedExperts::PinnedExperts(const MemoryLayout& layout, const HostExperts& source)
    : layout_(layout), source_(source), layers_(static_cast<size_t>(layout.moe_layers)) {
  for (int m = 0; m < layout.moe_layers; ++m) {
    const int head = layout.groups_per_layer - movable_groups(layout, m);
    Layer& layer = layers_[m];
    layer.first = std::min(layout.experts, head * layout.shards_per_group);
    const int count = layout.experts - layer.first;
    if (count == 0) continue;
    layer.experts = PinnedBuffer(static_cast<size_t>(count) * layout.shard_bytes());
    source.copy(m, layer.first, count, layer.experts.data());
  }
}

const std::byte* PinnedExperts::expert(int moe_layer, int expert) const {
  const Layer& layer = layers_[moe_layer];
  return layer.experts.data() + static_cast<size_t>(expert - layer.first) * layout_.shard_bytes();
}

size_t PinnedExperts::pinned_bytes() const {
  size_t experts = 0;
  for (const Layer& layer : layers_) experts += static_cast<size_t>(layout_.experts - layer.first);
  return experts * layout_.shard_bytes();
}

void PinnedExperts::copy_bytes(const std::byte* from, size_t bytes, std::byte* to) const {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_.get()),
             "loading experts");
  stream_.synchronize("loading experts");
}

void PinnedExperts::copy(int moe_layer, int first, int count, std::byte* to) const {
  const size_t stride = layout_.shard_bytes();
  const int end = first + count;
  const int pinned = std::clamp(layers_[moe_layer].first, first, end);
  const int chunk = std::max(1, static_cast<int>(kBounceBytes / stride));
  std::vector<std::byte> bounce;
  for (int e = first; e < pinned; e += chunk) {
    const int here = std::min(chunk, pinned - e);
    bounce.resize(static_cast<size_t>(here) * stride);
    source_.copy(moe_layer, e, here, bounce.data());
    copy_bytes(bounce.data(), bounce.size(), to + static_cast<size_t>(e - first) * stride);
  }
  if (pinned < end)
    copy_bytes(expert(moe_layer, pinned), static_cast<size_t>(end - pinned) * stride,
               to + static_cast<size_t>(pinned - first) * stride);
}

}  // namespace vamp
