// Vector loads and warp sums that the memory-bound kernels share.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace vamp::cuda {

// Eight bf16 in one 16-byte register quadruple.
struct Bf16x8 {
  uint4 bits;
};

// A weight is read once: it need not take room in L1.
__device__ __forceinline__ Bf16x8 load_weight(const __nv_bfloat16* p) {
  Bf16x8 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.bits.x), "=r"(v.bits.y), "=r"(v.bits.z), "=r"(v.bits.w)
               : "l"(p));
  return v;
}

__device__ __forceinline__ Bf16x8 load_bf16x8(const __nv_bfloat16* p) {
  return {*reinterpret_cast<const uint4*>(p)};
}

// Asks for a row of f32 that the block's threads will read; each for 32 bytes at a time.
__device__ __forceinline__ void prefetch_row(const float* row, int cols) {
  for (int i = static_cast<int>(threadIdx.x) * 8; i < cols; i += static_cast<int>(blockDim.x) * 8)
    asm volatile("prefetch.global.L1 [%0];" ::"l"(row + i));
}

// bf16 is the upper half of an f32.
__device__ __forceinline__ float bf16_low(uint32_t pair) {
  return __uint_as_float(pair << 16);
}
__device__ __forceinline__ float bf16_high(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

// sum += a · b over eight elements, in f32, in the order of the elements.
__device__ __forceinline__ float dot8(const Bf16x8& a, const Bf16x8& b, float sum) {
  const uint32_t x[4] = {a.bits.x, a.bits.y, a.bits.z, a.bits.w};
  const uint32_t y[4] = {b.bits.x, b.bits.y, b.bits.z, b.bits.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(bf16_low(x[i]), bf16_low(y[i]), sum);
    sum = fmaf(bf16_high(x[i]), bf16_high(y[i]), sum);
  }
  return sum;
}

// The same value in every lane; a fixed tree, so the same bits each time.
__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int lane = 16; lane > 0; lane >>= 1) v += __shfl_xor_sync(0xffffffffu, v, lane);
  return v;
}
__device__ __forceinline__ float warp_max(float v) {
#pragma unroll
  for (int lane = 16; lane > 0; lane >>= 1) v = fmaxf(v, __shfl_xor_sync(0xffffffffu, v, lane));
  return v;
}

__device__ __forceinline__ float silu(float x) {
  return x / (1.0f + __expf(-x));
}

}  // namespace vamp::cuda
