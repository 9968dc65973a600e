#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/vec.cuh"

namespace vamp::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = kNormMaxCols / (kThreads * 8);  // groups of 8 elements

__device__ void unpack(const Bf16x8& v, float (&x)[8]) {
  const uint32_t w[4] = {v.bits.x, v.bits.y, v.bits.z, v.bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = bf16_low(w[i]);
    x[2 * i + 1] = bf16_high(w[i]);
  }
}
__device__ void store8(__nv_bfloat16* p, const float (&x)[8]) {
  uint4 v;
  uint32_t w[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(x[2 * i], x[2 * i + 1]);
    w[i] = *reinterpret_cast<const uint32_t*>(&pair);
  }
  v = {w[0], w[1], w[2], w[3]};
  *reinterpret_cast<uint4*>(p) = v;
}

__device__ float block_sum(float v) {
  __shared__ float partial[kThreads / 32];
  v = warp_sum(v);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = v;
  __syncthreads();
  float sum = 0;
#pragma unroll
  for (int w = 0; w < kThreads / 32; ++w) sum += partial[w];
  return sum;
}

// One block a row. `add(i, x)` adds to the 8 elements from column i what joins the residual.
template <bool kHasDelta, typename Add>
__device__ void norm_row(__nv_bfloat16* residual, int cols, const float* weight, float eps,
                         bool one_plus, __nv_bfloat16* out, Add add) {
  float x[kPerThread][8];
  float squares = 0;
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    const int i = (j * kThreads + threadIdx.x) * 8;
    if (i >= cols) break;
    unpack(load_bf16x8(residual + i), x[j]);
    if constexpr (kHasDelta) {
      add(i, x[j]);
      store8(residual + i, x[j]);
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) {
      x[j][e] = __bfloat162float(__float2bfloat16(x[j][e]));
      squares = fmaf(x[j][e], x[j][e], squares);
    }
  }
  if (!out) return;
  const float scale = rsqrtf(block_sum(squares) / cols + eps);
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    const int i = (j * kThreads + threadIdx.x) * 8;
    if (i >= cols) break;
    const float4 a = *reinterpret_cast<const float4*>(weight + i),
                 b = *reinterpret_cast<const float4*>(weight + i + 4);
    const float w[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
    for (int e = 0; e < 8; ++e) x[j][e] *= scale * (one_plus ? 1.0f + w[e] : w[e]);
    store8(out + i, x[j]);
  }
}

template <bool kHasDelta>
__global__ void __launch_bounds__(kThreads)
    add_rms_norm_kernel(const __nv_bfloat16* __restrict__ delta, __nv_bfloat16* residual, int cols,
                        NormWeight weight, __nv_bfloat16* __restrict__ out) {
  allow_next();
  if (out) prefetch_row(weight.data, cols);
  wait_for_previous();
  const size_t row = static_cast<size_t>(blockIdx.x) * cols;
  norm_row<kHasDelta>(residual + row, cols, weight.data, weight.eps, weight.one_plus,
                      out ? out + row : nullptr, [&](int i, float(&x)[8]) {
                        float d[8];
                        unpack(load_bf16x8(delta + row + i), d);
#pragma unroll
                        for (int e = 0; e < 8; ++e) x[e] += d[e];
                      });
}

__global__ void __launch_bounds__(kThreads)
    combine_rms_norm_kernel(const float* __restrict__ y, MoeShape shape, Routing routing,
                            __nv_bfloat16* residual, NormWeight weight,
                            __nv_bfloat16* __restrict__ out) {
  allow_next();
  if (out) prefetch_row(weight.data, shape.hidden);
  wait_for_previous();
  const size_t token = blockIdx.x, row = token * shape.hidden;
  const auto add = [&](int i, float(&x)[8]) {
    float sum[8] = {};
    for (int k = 0; k < shape.top_k; ++k) {
      const size_t pair = token * shape.top_k + k;
      const float w = routing.weights[pair];
      const float4* v = reinterpret_cast<const float4*>(y + pair * shape.hidden + i);
      const float4 a = v[0], b = v[1];
      const float values[8] = {a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w};
#pragma unroll
      for (int e = 0; e < 8; ++e) sum[e] = fmaf(w, values[e], sum[e]);
    }
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] += sum[e];
  };
  norm_row<true>(residual + row, shape.hidden, weight.data, weight.eps, weight.one_plus,
                 out ? out + row : nullptr, add);
}

}  // namespace

void add_rms_norm(const __nv_bfloat16* delta, __nv_bfloat16* residual, int rows, int cols,
                  const NormWeight& weight, __nv_bfloat16* out, cudaStream_t stream) {
  VAMP_CHECK(cols % 8 == 0 && cols <= kNormMaxCols, "add_rms_norm: {} columns", cols);
  if (rows == 0) return;
  const auto kernel = delta ? add_rms_norm_kernel<true> : add_rms_norm_kernel<false>;
  launch_overlapped("add_rms_norm", kernel, rows, kThreads, 0, stream, delta, residual, cols,
                    weight, out);
}

void moe_combine_rms_norm(const float* y, int tokens, const MoeShape& shape, const Routing& routing,
                          __nv_bfloat16* residual, const NormWeight& weight, __nv_bfloat16* out,
                          cudaStream_t stream) {
  VAMP_CHECK(shape.hidden % 8 == 0 && shape.hidden <= kNormMaxCols,
             "moe_combine_rms_norm: {} columns", shape.hidden);
  if (tokens == 0) return;
  launch_overlapped("moe_combine_rms_norm", combine_rms_norm_kernel, tokens, kThreads, 0, stream, y,
                    shape, routing, residual, weight, out);
}

}  // namespace vamp::cuda
