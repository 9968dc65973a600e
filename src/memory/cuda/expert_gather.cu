#include "memory/cuda/expert_gather.h"

namespace vamp {
namespace {

constexpr int kMaxExperts = 2048;

struct GatherArguments {
  const std::byte* from;  // the pinned copy of expert `first_pinned`
  std::byte* to;          // expert 0 on the device
  int first_pinned;
  int experts;
  uint32_t shard_bytes;
  const int32_t* first_given_up;  // of this layer
  const int32_t* expert_start;
  unsigned long long* staged_bytes;
};

// Every block makes the same list of chosen experts, in order, and takes every gridDim-th piece.
__global__ __launch_bounds__(512) void gather_kernel(GatherArguments a) {
  __shared__ uint16_t chosen[kMaxExperts];
  __shared__ int chosen_count;
  if (threadIdx.x < 32) {
    const int lane = static_cast<int>(threadIdx.x);
    int count = 0;
    for (int base = *a.first_given_up; base < a.experts; base += 32) {
      const int expert = base + lane;
      const bool is_chosen =
          expert < a.experts && a.expert_start[expert + 1] > a.expert_start[expert];
      const unsigned mask = __ballot_sync(0xffffffffu, is_chosen);
      if (is_chosen)
        chosen[count + __popc(mask & ((1u << lane) - 1))] = static_cast<uint16_t>(expert);
      count += __popc(mask);
    }
    if (lane == 0) {
      chosen_count = count;
      if (blockIdx.x == 0)
        atomicAdd(a.staged_bytes, static_cast<unsigned long long>(count) * a.shard_bytes);
    }
  }
  __syncthreads();
  const uint32_t pieces = (a.shard_bytes + kLinkPieceBytes - 1) / kLinkPieceBytes;  // of an expert
  const auto piece_at = [&](uint32_t i) {
    const size_t expert = chosen[i / pieces];
    const uint32_t offset = i % pieces * kLinkPieceBytes;
    return LinkPiece{a.from + (expert - a.first_pinned) * a.shard_bytes + offset,
                     a.to + expert * a.shard_bytes + offset,
                     min(kLinkPieceBytes, a.shard_bytes - offset)};
  };
  link_copy(piece_at, pieces * static_cast<uint32_t>(chosen_count));
}

}  // namespace

ExpertGather::ExpertGather(const HbmPartition& partition, const PinnedExperts& source,
                           LinkCopyShape shape)
    : partition_(partition),
      source_(source),
      shape_(shape),
      first_given_up_(static_cast<size_t>(partition.layout().moe_layers)),
      staged_bytes_(1),
      first_given_up_host_(static_cast<size_t>(partition.layout().moe_layers) * sizeof(int32_t)) {
  const MemoryLayout& layout = partition.layout();
  VAMP_CHECK(layout.experts <= kMaxExperts, "{} experts, the gather kernel takes {}",
             layout.experts, kMaxExperts);
  VAMP_CHECK(layout.shard_bytes() % 16 == 0, "expert shards of {} bytes are no multiple of 16",
             layout.shard_bytes());
  check_link_copy_shape(shape);
  check_cuda(cudaMemset(staged_bytes_.get(), 0, sizeof(unsigned long long)), "clearing a counter");
  update(nullptr);
  check_cuda(cudaStreamSynchronize(nullptr), "telling the device the boundary");
}

void ExpertGather::update(cudaStream_t stream) {
  auto* first = reinterpret_cast<int32_t*>(first_given_up_host_.data());
  const int layers = partition_.layout().moe_layers;
  for (int m = 0; m < layers; ++m) first[m] = partition_.experts().first_given_up_expert(m);
  check_cuda(
      cudaMemcpyAsync(first_given_up_.get(), first, static_cast<size_t>(layers) * sizeof(int32_t),
                      cudaMemcpyHostToDevice, stream),
      "telling the device the boundary");
}

void ExpertGather::gather(int moe_layer, const int32_t* expert_start, cudaStream_t stream) {
  const MemoryLayout& layout = partition_.layout();
  const int first = source_.first_pinned(moe_layer);
  if (first == layout.experts) return;  // nothing of this layer is ever given up
  const GatherArguments arguments{source_.expert(moe_layer, first),
                                  partition_.experts().expert(moe_layer, 0),
                                  first,
                                  layout.experts,
                                  static_cast<uint32_t>(layout.shard_bytes()),
                                  first_given_up_.get() + moe_layer,
                                  expert_start,
                                  staged_bytes_.get()};
  launch_link_copy(gather_kernel, shape_, arguments, stream);
}

size_t ExpertGather::take_staged_bytes(cudaStream_t stream) {
  unsigned long long bytes = 0;
  check_cuda(
      cudaMemcpyAsync(&bytes, staged_bytes_.get(), sizeof(bytes), cudaMemcpyDeviceToHost, stream),
      "reading the staged bytes");
  check_cuda(cudaMemsetAsync(staged_bytes_.get(), 0, sizeof(bytes), stream), "clearing a counter");
  check_cuda(cudaStreamSynchronize(stream), "reading the staged bytes");
  return bytes;
}

}  // namespace vamp
