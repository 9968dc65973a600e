// What both copy kernels are made of: one thread of a block moves pieces through shared memory with
// the bulk copy unit (sm_90), many in flight. The host link needs some 150 KiB in flight (its
// latency is microseconds), and shared memory of two multiprocessors holds that; plain loads would
// take eight of them from the GEMMs beside the copy.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/cuda/cuda_error.h"

namespace vamp {

// How a copy kernel is launched. On an H200 the default reads host memory at 51.3 GB/s (0.925 of
// what the copy engine does) and slows an 8192^3 bf16 product beside it by 6%.
struct BulkCopyShape {
  int blocks = 2;
  uint32_t stage_bytes = 16384;  // a piece; a multiple of 16
  int stages = 12;               // pieces in a block's ring, 4 or more
  size_t shared_bytes() const { return static_cast<size_t>(stage_bytes) * stages; }
};
constexpr int kBulkCopyThreads = 32;
constexpr int kMaxBulkStages = 64;

inline void check_bulk_copy_shape(const BulkCopyShape& shape) {
  VAMP_CHECK(shape.blocks > 0 && shape.stage_bytes % 16 == 0 && shape.stages >= 4 &&
                 shape.stages <= kMaxBulkStages,
             "{} blocks of {} stages of {} bytes", shape.blocks, shape.stages, shape.stage_bytes);
}

#ifdef __CUDACC__
// Launches a copy kernel. Its few blocks go before all others that wait for a multiprocessor, also
// from inside a graph: behind a grid that fills the device they would wait for that whole grid.
template <typename Arguments>
void launch_bulk_copy(void (*kernel)(Arguments), const BulkCopyShape& shape,
                      const Arguments& arguments, cudaStream_t stream) {
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for launch priorities");
  cudaLaunchAttribute priority{};
  priority.id = cudaLaunchAttributePriority;
  priority.val.priority = greatest;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(kBulkCopyThreads);
  config.dynamicSmemBytes = shape.shared_bytes();
  config.stream = stream;
  config.attrs = &priority;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments), "launching a copy kernel");
}

namespace bulk {

__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ inline void init_barrier(uint64_t* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}
__device__ inline void load(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)),
      "r"(bytes)
      : "memory");
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}
__device__ inline void wait(uint64_t* barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}\n" ::"r"(
          shared_address(barrier)),
      "r"(parity)
      : "memory");
}
__device__ inline void store(void* to, const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(shared_address(from)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

}  // namespace bulk

// A piece may span two mappings that are neighbours. compute-sanitizer (2025.3) reports that as out
// of bounds of the first, which it is not: both are mapped.
struct BulkPiece {
  const std::byte* from;
  std::byte* to;
  uint32_t bytes;  // a multiple of 16, at most stage_bytes; both addresses are multiples of 16
};

// Copies pieces blockIdx.x, + gridDim.x, ... of piece_at(0 ... total - 1). Called by one thread of
// the block; `ring` is its dynamic shared memory. Returns when the bytes have been written.
template <typename PieceAt>
__device__ void bulk_copy(PieceAt piece_at, uint32_t total, std::byte* ring, uint32_t stage_bytes,
                          int stages) {
  constexpr int kStoresInFlight = 2;  // whose shared memory may still be read
  __shared__ uint64_t barriers[kMaxBulkStages];
  for (int i = 0; i < stages; ++i) bulk::init_barrier(&barriers[i]);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  const int count =
      total > blockIdx.x ? static_cast<int>((total - blockIdx.x + gridDim.x - 1) / gridDim.x) : 0;
  const int depth = stages - 1 - kStoresInFlight;  // loads in flight
  int load_stage = 0, store_stage = 0;
  uint32_t parity = 0;
  for (int i = 0; i < count + depth; ++i) {
    if (i < count) {
      // The stage's last store, `stages` pieces ago, must have read it.
      asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kStoresInFlight) : "memory");
      const BulkPiece piece = piece_at(blockIdx.x + static_cast<uint32_t>(i) * gridDim.x);
      bulk::load(ring + load_stage * stage_bytes, piece.from, piece.bytes, &barriers[load_stage]);
      if (++load_stage == stages) load_stage = 0;
    }
    if (i >= depth) {
      const BulkPiece piece = piece_at(blockIdx.x + static_cast<uint32_t>(i - depth) * gridDim.x);
      bulk::wait(&barriers[store_stage], parity);
      bulk::store(piece.to, ring + store_stage * stage_bytes, piece.bytes);
      if (++store_stage == stages) {
        store_stage = 0;
        parity ^= 1;
      }
    }
  }
  asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}
#endif

}  // namespace vamp
