#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/moe_grouped.h"
#include "kernels/cuda/pack_bf16.cuh"
#include "kernels/cuda/vec.cuh"

namespace vamp::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kCombineThreads = 256;
constexpr int kCombineMaxCols = 8192;
constexpr int kTogether = 12;  // experts whose results are asked for before the first is added

__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(const bf16* y, int hidden, int top_k, const float* weights, bf16* residual,
                   NormWeight norm, bf16* out) {
  __shared__ float warp_squares[kCombineThreads / 32];
  constexpr int kMost = kCombineMaxCols / 8 / kCombineThreads;
  const size_t t = blockIdx.x;
  allow_next();
  if (out) prefetch_row(norm.data, hidden);
  wait_for_previous();
  float value[kMost][8];
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int column = (i * kCombineThreads + static_cast<int>(threadIdx.x)) * 8;
    if (column >= hidden) break;
    float sum[8] = {};
    uint4* const place = reinterpret_cast<uint4*>(residual + t * hidden + column);
    const uint4 old = *place;
    for (int first = 0; first < top_k; first += kTogether) {
      const int experts = min(kTogether, top_k - first);
      float weight[kTogether];
      uint4 bits[kTogether];
#pragma unroll
      for (int e = 0; e < kTogether; ++e) {
        if (e >= experts) break;
        weight[e] = weights[t * top_k + first + e];
        bits[e] = load_bf16x8(y + (t * top_k + first + e) * hidden + column).bits;
      }
#pragma unroll
      for (int e = 0; e < kTogether; ++e) {
        if (e >= experts) break;
        const uint32_t words[4] = {bits[e].x, bits[e].y, bits[e].z, bits[e].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          sum[2 * j] = fmaf(weight[e], bf16_low(words[j]), sum[2 * j]);
          sum[2 * j + 1] = fmaf(weight[e], bf16_high(words[j]), sum[2 * j + 1]);
        }
      }
    }
    const uint32_t words[4] = {old.x, old.y, old.z, old.w};
    uint32_t rounded[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      rounded[j] = pack_bf16(bf16_low(words[j]) + sum[2 * j], bf16_high(words[j]) + sum[2 * j + 1]);
      value[i][2 * j] = bf16_low(rounded[j]);
      value[i][2 * j + 1] = bf16_high(rounded[j]);
      squares += value[i][2 * j] * value[i][2 * j] + value[i][2 * j + 1] * value[i][2 * j + 1];
    }
    *place = make_uint4(rounded[0], rounded[1], rounded[2], rounded[3]);
  }
  if (!out) return;
  squares = warp_sum(squares);
  if (threadIdx.x % 32 == 0) warp_squares[threadIdx.x / 32] = squares;
  __syncthreads();
  float total = 0;
  for (float s : warp_squares) total += s;
  const float scale = rsqrtf(total / static_cast<float>(hidden) + norm.eps);
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int column = (i * kCombineThreads + static_cast<int>(threadIdx.x)) * 8;
    if (column >= hidden) break;
    uint32_t words[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float2 w = *reinterpret_cast<const float2*>(norm.data + column + 2 * j);
      const float one = norm.one_plus ? 1.0f : 0.0f;
      words[j] = pack_bf16(value[i][2 * j] * scale * (one + w.x),
                           value[i][2 * j + 1] * scale * (one + w.y));
    }
    *reinterpret_cast<uint4*>(out + t * hidden + column) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

}  // namespace

void moe_grouped_combine_rms_norm(const bf16* y, int tokens, const MoeShape& shape,
                                  const Routing& routing, bf16* residual, const NormWeight& weight,
                                  bf16* out, cudaStream_t stream) {
  VAMP_CHECK(shape.hidden % 8 == 0 && shape.hidden <= kCombineMaxCols, "combine: hidden {}",
             shape.hidden);
  if (tokens == 0) return;
  launch_overlapped("moe_grouped_combine", combine_kernel, tokens, kCombineThreads, 0, stream, y,
                    shape.hidden, shape.top_k, routing.weights, residual, weight, out);
}

}  // namespace vamp::cuda
