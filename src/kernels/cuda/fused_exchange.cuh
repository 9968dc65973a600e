// How the blocks of the fused decode step tell each other values without a barrier.
//
// A word (32 bits: two bf16 or one f32) that has not been written holds kUnwritten, a NaN of a kind
// that arithmetic does not give (it gives 0x7fff and 0x7fffffff). Who needs a value reads it until
// it is there. Each array is there twice, for even and for odd layers: who writes a word for a
// layer unwrites it in the other one, which every block has read by then, for to write anything for
// a layer takes values that all blocks' last layers went into. That the unwriting is seen by those
// who read the word in the next layer, fence() sees to, by writers and readers, twice a layer:
// before attention, and before the experts' down product.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace vamp::cuda::fused {

constexpr uint32_t kUnwritten = 0xffffffffu;

// An array for even layers, and after `stride` bytes the one for odd layers.
template <typename T>
struct Twice {
  T* even;
  int64_t stride;
  __device__ T* of(uint32_t epoch) const {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(even) + (epoch & 1) * stride);
  }
};

__device__ __forceinline__ uint4 peek16(const void* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ uint2 peek8(const void* p) {
  uint2 v;
  asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
  return v;
}
__device__ __forceinline__ uint32_t peek4(const void* p) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p));
  return v;
}
__device__ __forceinline__ bool unwritten(const uint4& v) {
  return v.x == kUnwritten || v.y == kUnwritten || v.z == kUnwritten || v.w == kUnwritten;
}

__device__ __forceinline__ void put4(void* p, uint32_t v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
__device__ __forceinline__ void put16(void* p, const uint4& v) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
// Writes word `index` for a layer.
template <typename T>
__device__ __forceinline__ void publish(const Twice<T>& to, uint32_t epoch, int64_t index,
                                        uint32_t word) {
  put4(reinterpret_cast<uint32_t*>(to.of(epoch)) + index, word);
  put4(reinterpret_cast<uint32_t*>(to.of(epoch + 1)) + index, kUnwritten);
}

__device__ __forceinline__ void fence() {
  __threadfence();
}

}  // namespace vamp::cuda::fused
