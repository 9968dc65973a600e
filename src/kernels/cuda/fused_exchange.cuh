// How the blocks of the fused decode step tell each other values without a barrier.
//
// A word (32 bits: two bf16 or one f32) that has not been written holds kUnwritten, a NaN of a kind
// that arithmetic does not give (it gives 0x7fff and 0x7fffffff). Who needs a value reads it until
// it is there. Each array is there four times, for layers in turn: who writes a word for a layer
// unwrites the one of the layer in front, which every block has read by then, for to write anything
// for a layer takes values that all blocks' last layers went into. It is written anew three layers
// later. That its being unwritten is seen by then, two fences of each block see to, one in each of
// the next two layers: of who unwrote it, before it says anything in the first of them that others
// need for the second, and in that one of who will read it, after having heard that (by other
// threads of the block, which the letter of PTX does not know, but L2 serves them all). (What only
// layers with attention, or with Gated DeltaNet, write is there for layers of that kind in turn,
// which lie further apart.) All is unwritten when a launch begins and ends.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace vamp::cuda::fused {

constexpr uint32_t kUnwritten = 0xffffffffu, kTurns = 4;

// An array for layers in turn, `stride` bytes apart.
template <typename T>
struct InTurn {
  T* first;
  int64_t stride;
  __device__ T* of(uint32_t turn) const {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(first) + turn % kTurns * stride);
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
// Writes word `index` of a turn.
template <typename T>
__device__ __forceinline__ void publish(const InTurn<T>& to, uint32_t turn, int64_t index,
                                        uint32_t word) {
  put4(reinterpret_cast<uint32_t*>(to.of(turn)) + index, word);
  put4(reinterpret_cast<uint32_t*>(to.of(turn + kTurns - 1)) + index, kUnwritten);
}
__device__ __forceinline__ void publish16(const InTurn<float>& to, uint32_t turn, int64_t index,
                                          const uint4& words) {
  put16(to.of(turn) + index, words);
  put16(to.of(turn + kTurns - 1) + index, {kUnwritten, kUnwritten, kUnwritten, kUnwritten});
}

__device__ __forceinline__ void fence() {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

}  // namespace vamp::cuda::fused
