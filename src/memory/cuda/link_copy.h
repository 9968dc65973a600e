// What both copy kernels are made of: a few blocks move pieces between the device and pinned host
// memory with plain 16-byte loads. The host link's latency is microseconds, so that some 150 KiB
// must be in flight to fill it.
//
// Not by the bulk copy unit: two multiprocessors with rings in shared memory fill the link as well,
// but beside kernels that saturate the device's memory their few large requests fall behind, to a
// fifth of the rate.
#pragma once

#include <cstddef>
#include <cstdint>

#include "memory/cuda/cuda_error.h"

namespace vamp {

// How a copy kernel is launched.
struct LinkCopyShape {
  int blocks = 8;
  int threads = 512;
};

inline void check_link_copy_shape(const LinkCopyShape& shape) {
  VAMP_CHECK(
      shape.blocks > 0 && shape.threads >= 32 && shape.threads <= 512 && shape.threads % 32 == 0,
      "a copy by {} blocks of {} threads", shape.blocks, shape.threads);
}

#ifdef __CUDACC__
// Launches a copy kernel. Its few blocks go before all others that wait for a multiprocessor, also
// from inside a graph: behind a grid that fills the device they would wait for that whole grid.
template <typename Arguments>
void launch_link_copy(void (*kernel)(Arguments), const LinkCopyShape& shape,
                      const Arguments& arguments, cudaStream_t stream) {
  int least = 0, greatest = 0;
  check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for launch priorities");
  cudaLaunchAttribute priority{};
  priority.id = cudaLaunchAttributePriority;
  priority.val.priority = greatest;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(shape.blocks));
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.stream = stream;
  config.attrs = &priority;
  config.numAttrs = 1;
  check_cuda(cudaLaunchKernelEx(&config, kernel, arguments), "launching a copy kernel");
}

// A piece may span two mappings that are neighbours. compute-sanitizer (2025.3) reports that as out
// of bounds of the first, which it is not: both are mapped.
struct LinkPiece {
  const std::byte* from;
  std::byte* to;
  uint32_t bytes;  // a multiple of 16; both addresses are multiples of 16
};
constexpr uint32_t kLinkPieceBytes = 64 << 10;  // of the copy kernels: 8 loads of 512 threads

// Copies pieces blockIdx.x, + gridDim.x, ... of piece_at(0 ... total - 1), by the whole block.
template <typename PieceAt>
__device__ void link_copy(PieceAt piece_at, uint32_t total) {
  constexpr int kLoads = 8;  // in flight per thread
  for (uint32_t i = blockIdx.x; i < total; i += gridDim.x) {
    const LinkPiece piece = piece_at(i);
    const auto* from = reinterpret_cast<const uint4*>(piece.from);
    auto* to = reinterpret_cast<uint4*>(piece.to);
    const uint32_t words = piece.bytes / 16;
    for (uint32_t first = threadIdx.x; first < words; first += kLoads * blockDim.x) {
      uint4 v[kLoads];
#pragma unroll
      for (int k = 0; k < kLoads; ++k)
        if (first + k * blockDim.x < words) v[k] = __ldcv(from + first + k * blockDim.x);
#pragma unroll
      for (int k = 0; k < kLoads; ++k)
        if (first + k * blockDim.x < words) to[first + k * blockDim.x] = v[k];
    }
  }
}
#endif

}  // namespace vamp
