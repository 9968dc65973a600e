#include "kernels/cuda/moe_skinny.h"

#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/skinny_gemm.cuh"

namespace vamp::cuda {
namespace {

constexpr int kColumnSets = 2;
constexpr int kColumns = 8 * kColumnSets;

// This block's expert and its pairs; false when there is none for it.
struct ExpertPairs {
  int expert, begin, count;
};
__device__ bool find_expert(const Routing& routing, ExpertPairs& out) {
  if (static_cast<int>(blockIdx.y) >= *routing.num_active) return false;
  out.expert = routing.active_experts[blockIdx.y];
  out.begin = routing.expert_start[out.expert];
  out.count = routing.expert_start[out.expert + 1] - out.begin;
  return true;
}

__device__ const __nv_bfloat16* expert_matrix(const void* base, size_t stride, int expert) {
  return reinterpret_cast<const __nv_bfloat16*>(static_cast<const char*>(base) + expert * stride);
}

// The tile's 32 rows are 16 gate rows and the 16 up rows of the same indices, so that a thread of the
// epilogue finds both.
__global__ void __launch_bounds__(skinny::kThreads)
    gate_up_kernel(const __nv_bfloat16* __restrict__ x, MoeWeights weights, Routing routing,
                   __nv_bfloat16* __restrict__ activation, MoeShape shape) {
  __shared__ skinny::Shared<kColumnSets> shared;
  ExpertPairs pairs;
  if (!find_expert(routing, pairs)) return;
  const int H = shape.hidden, I = shape.intermediate;
  const int group = threadIdx.x % 32 / 4, first = blockIdx.x * 16;
  const __nv_bfloat16* w = expert_matrix(weights.gate_up, weights.gate_up_stride, pairs.expert);
  const __nv_bfloat16* rows[4];
#pragma unroll
  for (int r = 0; r < 4; ++r)
    rows[r] = w + static_cast<size_t>(first + group + 8 * (r % 2) + (r / 2) * I) * H;
  for (int c0 = 0; c0 < pairs.count; c0 += kColumns) {
    const __nv_bfloat16* columns[kColumnSets];
#pragma unroll
    for (int s = 0; s < kColumnSets; ++s) {
      const int c = c0 + 8 * s + group;
      columns[s] = c < pairs.count ? x + static_cast<size_t>(routing.pairs[pairs.begin + c] /
                                                             shape.top_k) * H
                                   : nullptr;
    }
    skinny::accumulate<kColumnSets>(rows, columns, H, shared);
    const int column = threadIdx.x / 16, i = threadIdx.x % 16;
    if (c0 + column < pairs.count) {
      const float gate = skinny::total<kColumnSets>(shared, column, i);
      const float up = skinny::total<kColumnSets>(shared, column, i + 16);
      const int pair = routing.pairs[pairs.begin + c0 + column];
      activation[static_cast<size_t>(pair) * I + first + i] = __float2bfloat16(silu(gate) * up);
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(skinny::kThreads)
    down_kernel(const __nv_bfloat16* __restrict__ activation, MoeWeights weights, Routing routing,
                float* __restrict__ y, MoeShape shape) {
  __shared__ skinny::Shared<kColumnSets> shared;
  ExpertPairs pairs;
  if (!find_expert(routing, pairs)) return;
  const int H = shape.hidden, I = shape.intermediate;
  const int group = threadIdx.x % 32 / 4, first = blockIdx.x * skinny::kTileRows;
  const __nv_bfloat16* w = expert_matrix(weights.down, weights.down_stride, pairs.expert);
  const __nv_bfloat16* rows[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int h = first + group + 8 * r;
    rows[r] = h < H ? w + static_cast<size_t>(h) * I : nullptr;
  }
  for (int c0 = 0; c0 < pairs.count; c0 += kColumns) {
    const __nv_bfloat16* columns[kColumnSets];
#pragma unroll
    for (int s = 0; s < kColumnSets; ++s) {
      const int c = c0 + 8 * s + group;
      columns[s] = c < pairs.count
                       ? activation + static_cast<size_t>(routing.pairs[pairs.begin + c]) * I
                       : nullptr;
    }
    skinny::accumulate<kColumnSets>(rows, columns, I, shared);
    const int columns_here = min(kColumns, pairs.count - c0);
    for (int i = threadIdx.x; i < columns_here * skinny::kTileRows; i += skinny::kThreads) {
      const int column = i / skinny::kTileRows, row = i % skinny::kTileRows;
      if (first + row >= H) continue;
      const int pair = routing.pairs[pairs.begin + c0 + column];
      y[static_cast<size_t>(pair) * H + first + row] = skinny::total<kColumnSets>(shared, column, row);
    }
    __syncthreads();
  }
}

int max_active(int tokens, const MoeShape& shape) {
  return std::min(shape.experts, tokens * shape.top_k);
}

}  // namespace

void moe_skinny_gate_up(const __nv_bfloat16* x, int tokens, const MoeShape& shape,
                        const MoeWeights& weights, const Routing& routing,
                        __nv_bfloat16* activation, cudaStream_t stream) {
  VAMP_CHECK(shape.intermediate % 16 == 0 && shape.hidden % 8 == 0 && weights.dtype == DType::kBf16,
             "moe_skinny: hidden {}, intermediate {}", shape.hidden, shape.intermediate);
  if (tokens == 0) return;
  const dim3 grid(shape.intermediate / 16, max_active(tokens, shape));
  gate_up_kernel<<<grid, skinny::kThreads, 0, stream>>>(x, weights, routing, activation, shape);
  check_launch("moe_skinny_gate_up");
}

void moe_skinny_down(const __nv_bfloat16* activation, int tokens, const MoeShape& shape,
                     const MoeWeights& weights, const Routing& routing, float* y,
                     cudaStream_t stream) {
  if (tokens == 0) return;
  const dim3 grid((shape.hidden + skinny::kTileRows - 1) / skinny::kTileRows,
                  max_active(tokens, shape));
  down_kernel<<<grid, skinny::kThreads, 0, stream>>>(activation, weights, routing, y, shape);
  check_launch("moe_skinny_down");
}

}  // namespace vamp::cuda
