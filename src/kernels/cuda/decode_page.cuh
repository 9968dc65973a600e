// Attention of one KV head's query heads to a page of 16 tokens, by one warp on tensor cores.
#pragma once

#include <cuda_bf16.h>

#include "kernels/cuda/skinny_gemm.cuh"
#include "kernels/cuda/vec.cuh"

namespace vamp::cuda::decode {

// Keys and values of a page come to the warp's own shared memory by asynchronous copies, a few
// pages ahead.
constexpr int kPage = 16;
constexpr int kRows = 16;  // of the tensor-core tile: the query heads of one KV head

template <int D>
struct Pipeline {
  static constexpr int kStages = D == 256 ? 2 : 3;
  static constexpr int kChunks = D / 8;  // 16-byte chunks of a row
  uint4 k[kStages][kPage][kChunks];
  uint4 v[kStages][kPage][kChunks];
};

// Rows are spread over banks: chunk c of row r lies at c ^ (r % 8).
__device__ __forceinline__ int swizzle(int row, int chunk) {
  return chunk ^ (row & 7);
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Starts the copies of a page: 16 tokens of one head are a contiguous matrix, k and v each. Of
// tokens from `valid` on v is zero: weighted by 0, what a block's last owner left there could still
// be NaN.
template <int D>
__device__ void copy_page(Pipeline<D>& pages, int stage, const __nv_bfloat16* k,
                          const __nv_bfloat16* v, int valid) {
  constexpr int kChunks = Pipeline<D>::kChunks;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kPage * kChunks / 32; ++i) {
    const int chunk = i * 32 + lane, row = chunk / kChunks, column = chunk % kChunks;
    skinny::copy16_async(shared_address(&pages.k[stage][row][swizzle(row, column)]), k + chunk * 8,
                         true);
    skinny::copy16_async(shared_address(&pages.v[stage][row][swizzle(row, column)]), v + chunk * 8,
                         row < valid);
  }
}

__device__ __forceinline__ void load_transposed(const void* p, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p)));
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// State of one warp: rows g and g + 8 of the heads, dims 8 i + 2 c and the next.
template <int D>
struct Accumulator {
  float out[D / 8][4] = {};
  float most[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};
};

// Folds one page into the accumulator. `valid`: tokens of it that count.
template <int D>
__device__ void attend_page(const Pipeline<D>& pages, int stage, int valid,
                            const Bf16x8 (&q)[2][D / 32], float scale_log2, Accumulator<D>& acc) {
  const int lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
  float score[2][4] = {};
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const int row = tile * 8 + group;
#pragma unroll
    for (int j = 0; j < D / 32; ++j) {
      const uint4 k = pages.k[stage][row][swizzle(row, j * 4 + quad)];
      skinny::mma(score[tile], q[0][j].bits.x, q[1][j].bits.x, q[0][j].bits.y, q[1][j].bits.y, k.x,
                  k.y);
      skinny::mma(score[tile], q[0][j].bits.z, q[1][j].bits.z, q[0][j].bits.w, q[1][j].bits.w, k.z,
                  k.w);
    }
  }
  uint32_t p[4];  // the probabilities as the first operand of the product with V
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = acc.most[half];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& s = score[tile][2 * half + e];
        s = tile * 8 + 2 * quad + e < valid ? s * scale_log2 : -INFINITY;
        most = fmaxf(most, s);
      }
    }
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const float shrink = exp2f(acc.most[half] - most);
    acc.most[half] = most;
    float sum = 0;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const float a = exp2f(score[tile][2 * half] - most),
                  b = exp2f(score[tile][2 * half + 1] - most);
      sum += a + b;
      p[2 * tile + half] = pack(a, b);
    }
    acc.sum[half] = acc.sum[half] * shrink + sum;
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
      acc.out[i][2 * half] *= shrink;
      acc.out[i][2 * half + 1] *= shrink;
    }
  }
  // Lane l addresses row l % 16 of the page, the even or the odd 8 dims of a 16-wide strip.
  const int row = lane % 16, odd = lane / 16;
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
    uint32_t v[4];
    load_transposed(&pages.v[stage][row][swizzle(row, 2 * i + odd)], v);
    skinny::mma(acc.out[2 * i], p[0], p[1], p[2], p[3], v[0], v[1]);
    skinny::mma(acc.out[2 * i + 1], p[0], p[1], p[2], p[3], v[2], v[3]);
  }
}

}  // namespace vamp::cuda::decode
