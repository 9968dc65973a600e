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
    layer.gate_up = PinnedBuffer(static_cast<size_t>(count) * layout.gate_up_shard_bytes);
    layer.down = PinnedBuffer(static_cast<size_t>(count) * layout.down_shard_bytes);
    source.copy_gate_up(m, layer.first, count, layer.gate_up.data());
    source.copy_down(m, layer.first, count, layer.down.data());
  }
}

const std::byte* PinnedExperts::gate_up(int moe_layer, int expert) const {
  const Layer& layer = layers_[moe_layer];
  return layer.gate_up.data() +
         static_cast<size_t>(expert - layer.first) * layout_.gate_up_shard_bytes;
}

const std::byte* PinnedExperts::down(int moe_layer, int expert) const {
  const Layer& layer = layers_[moe_layer];
  return layer.down.data() + static_cast<size_t>(expert - layer.first) * layout_.down_shard_bytes;
}

size_t PinnedExperts::pinned_bytes() const {
  size_t experts = 0;
  for (const Layer& layer : layers_) experts += static_cast<size_t>(layout_.experts - layer.first);
  return experts * (layout_.gate_up_shard_bytes + layout_.down_shard_bytes);
}

void PinnedExperts::read_source(Matrix matrix, int moe_layer, int first, int count,
                                std::byte* to) const {
  if (matrix == Matrix::kGateUp) {
    source_.copy_gate_up(moe_layer, first, count, to);
  } else {
    source_.copy_down(moe_layer, first, count, to);
  }
}

void PinnedExperts::copy(Matrix matrix, int moe_layer, int first, int count, std::byte* to) const {
  const size_t bytes = stride(matrix);
  const int pinned_from = layers_[moe_layer].first;
  const int end = first + count;
  const int chunk = std::max(1, static_cast<int>(kBounceBytes / bytes));
  std::vector<std::byte> bounce;
  for (int e = first; e < std::min(end, pinned_from); e += chunk) {
    const int here = std::min(chunk, std::min(end, pinned_from) - e);
    bounce.resize(static_cast<size_t>(here) * bytes);
    read_source(matrix, moe_layer, e, here, bounce.data());
    check_cuda(cudaMemcpyAsync(to + static_cast<size_t>(e - first) * bytes, bounce.data(),
                               bounce.size(), cudaMemcpyHostToDevice, stream_.get()),
               "loading experts");
    stream_.synchronize("loading experts");
  }
  const int from = std::max(first, pinned_from);
  if (from >= end) return;
  const std::byte* pinned =
      matrix == Matrix::kGateUp ? gate_up(moe_layer, from) : down(moe_layer, from);
  check_cuda(cudaMemcpyAsync(to + static_cast<size_t>(from - first) * bytes, pinned,
                             static_cast<size_t>(end - from) * bytes, cudaMemcpyHostToDevice,
                             stream_.get()),
             "loading experts");
  stream_.synchronize("loading experts");
}

void PinnedExperts::copy_gate_up(int moe_layer, int first, int count, std::byte* to) const {
  copy(Matrix::kGateUp, moe_layer, first, count, to);
}

void PinnedExperts::copy_down(int moe_layer, int first, int count, std::byte* to) const {
  copy(Matrix::kDown, moe_layer, first, count, to);
}

}  // namespace vamp
