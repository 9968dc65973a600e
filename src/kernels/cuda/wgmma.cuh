// Hopper's asynchronous machinery as the large products use it: shared-memory barriers with a
// phase, tensor copies that complete on them, and warpgroup matrix products.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>
// CUTLASS's wrappers of the wgmma instructions
#include <cute/arch/mma_sm90_gmma.hpp>
#include <cute/arch/mma_sm90_gmma_ext.hpp>
#include <utility>

namespace vamp::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// A barrier in shared memory. A phase ends when `arrivals` threads have arrived and all expected
// bytes have come; waiting on a parity returns when the phase of that parity has ended.
struct Barrier {
  uint64_t state;

  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&state)),
                 "r"(arrivals)
                 : "memory");
  }
  __device__ void arrive() {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&state))
                 : "memory");
  }
  __device__ void arrive_expecting(uint32_t bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&state)),
        "r"(bytes)
        : "memory");
  }
  __device__ bool ended(uint32_t parity) {
    uint32_t done;
    asm volatile(
        "{\n"
        ".reg .pred p;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n"
        "}\n"
        : "=r"(done)
        : "r"(shared_address(&state)), "r"(parity)
        : "memory");
    return done != 0;
  }
  __device__ void wait(uint32_t parity) {
    uint32_t done = 0;
    while (!done) {
      asm volatile(
          "{\n"
          ".reg .pred p;\n"
          "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
          "selp.u32 %0, 1, 0, p;\n"
          "}\n"
          : "=r"(done)
          : "r"(shared_address(&state)), "r"(parity)
          : "memory");
    }
  }
};

// Barriers are initialised by ordinary stores, which the copy unit must see.
__device__ __forceinline__ void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
// Makes this thread's finished writes to shared memory visible to wgmma and the copy unit.
__device__ __forceinline__ void fence_async_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// What is read once: it leaves L2 before the rest.
__device__ __forceinline__ uint64_t read_once_policy() {
  uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// Copies the box at (col, row, matrix) of `map` to `destination`; its bytes count on `barrier`.
__device__ __forceinline__ void copy_box(void* destination, const CUtensorMap& map,
                                         Barrier& barrier, int col, int row, int matrix) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(shared_address(destination)),
      "l"(&map), "r"(shared_address(&barrier.state)), "r"(col), "r"(row), "r"(matrix)
      : "memory");
}
// The same of what is read once.
__device__ __forceinline__ void copy_box_once(void* destination, const CUtensorMap& map,
                                              Barrier& barrier, int col, int row, int matrix) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared_address(destination)),
      "l"(&map), "r"(shared_address(&barrier.state)), "r"(col), "r"(row), "r"(matrix),
      "l"(read_once_policy())
      : "memory");
}
// Neighbouring bytes, 16-byte aligned on both sides, under a cache policy.
__device__ __forceinline__ void copy_bytes(void* destination, const void* source, uint32_t bytes,
                                           Barrier& barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(destination)),
      "l"(source), "r"(bytes), "r"(shared_address(&barrier.state)), "l"(policy)
      : "memory");
}
__device__ __forceinline__ void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// 16 bytes by the asynchronous copy of one thread; `bytes` < 16: the rest is zero.
__device__ __forceinline__ void copy16(uint32_t destination, const void* source, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

template <int kRegisters>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// A matrix of rows of 64 bf16 (128 bytes) in shared memory, 128-byte swizzled, 1,024-byte aligned:
// eight rows are 1,024 bytes. The k-th 16 columns begin 32 bytes (2 in the descriptor) further.
__device__ __forceinline__ uint64_t matrix_descriptor(const void* shared) {
  constexpr uint64_t kEightRows = 1024 >> 4, kSwizzle128 = 1;
  return (shared_address(shared) >> 4) | (uint64_t{1} << 16) | (kEightRows << 32) |
         (kSwizzle128 << 62);
}

template <typename Instruction, int kCount, size_t... kIndex>
__device__ __forceinline__ void wgmma_call(uint64_t a, uint64_t b, float (&d)[kCount],
                                           std::index_sequence<kIndex...>) {
  Instruction::fma(a, b, d[kIndex]..., cute::SM90::GMMA::ScaleOut::One);
}

// d[64 x kColumns] += a[64 x 16] b[kColumns x 16]ᵀ by a warpgroup. Thread t of it holds rows 16 (t
// / 32) + (t % 32) / 4 and 8 further, columns 8 j + 2 (t % 4) + {0, 1}: d[4 j + {0, 1}] and, of the
// row 8 further, d[4 j + {2, 3}].
template <int kColumns>
__device__ __forceinline__ void wgmma(uint64_t a, uint64_t b, float (&d)[kColumns / 2]) {
  namespace gmma = cute::SM90::GMMA;
  constexpr auto kRowMajor = gmma::Major::K;
  constexpr std::make_index_sequence<kColumns / 2> indices{};
  static_assert(kColumns % 16 == 0 && kColumns <= 128);
#define VAMP_WGMMA(n)          \
  if constexpr (kColumns == n) \
  wgmma_call<gmma::MMA_64x##n##x16_F32BF16BF16_SS<kRowMajor, kRowMajor>>(a, b, d, indices)
  VAMP_WGMMA(16);
  VAMP_WGMMA(32);
  VAMP_WGMMA(48);
  VAMP_WGMMA(64);
  VAMP_WGMMA(80);
  VAMP_WGMMA(96);
  VAMP_WGMMA(112);
  VAMP_WGMMA(128);
#undef VAMP_WGMMA
}
__device__ __forceinline__ void wgmma_begin() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Keeps the compiler from moving uses of accumulators across the asynchronous products.
template <int kCount>
__device__ __forceinline__ void pin_registers(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

// Four 8x8 matrices of b16 (a thread: row lane / 4, columns 2 (lane % 4) + {0, 1} of each) stored
// transposed: lane i gives the address of 8 elements, column i % 8 of matrix i / 8.
__device__ __forceinline__ void store_transposed(uint32_t address, const uint32_t (&m)[4]) {
  asm volatile(
      "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
      "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
      : "memory");
}

}  // namespace vamp::cuda
