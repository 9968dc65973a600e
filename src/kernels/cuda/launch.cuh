// Launching kernels that overlap the end of the one before (programmatic dependent launch).
//
// Every kernel launched here must call wait_for_previous() before it reads or writes anything that
// an earlier kernel touches; what it does before that (dense weights, which nothing in a step
// writes) runs while the earlier kernel ends. allow_next() lets the next kernel start that way.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "kernels/cuda/cuda_check.h"

namespace vamp::cuda {

__device__ __forceinline__ void wait_for_previous() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}
__device__ __forceinline__ void allow_next() {
  asm volatile("griddepcontrol.launch_dependents;");
}

// `cluster_x`: blocks of a thread-block cluster along x.
template <typename... Params, typename... Args>
void launch_overlapped_clusters(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block,
                                size_t shared_bytes, cudaStream_t stream, int cluster_x,
                                Args&&... args) {
  cudaLaunchAttribute attributes[2]{};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim.x = static_cast<unsigned>(cluster_x);
  attributes[1].val.clusterDim.y = attributes[1].val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = cluster_x > 1 ? 2 : 1;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), name);
}

// After all in front has ended, of which there may be more than one stream's.
template <typename... Params, typename... Args>
void launch_after_all(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block,
                      size_t shared_bytes, cudaStream_t stream, Args&&... args) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  check(cudaLaunchKernelEx(&config, kernel, std::forward<Args>(args)...), name);
}

template <typename... Params, typename... Args>
void launch_overlapped(const char* name, void (*kernel)(Params...), dim3 grid, dim3 block,
                       size_t shared_bytes, cudaStream_t stream, Args&&... args) {
  launch_overlapped_clusters(name, kernel, grid, block, shared_bytes, stream, 1,
                             std::forward<Args>(args)...);
}

// How many clusters of so many blocks the device runs at a time. Their multiprocessors must be
// neighbours, so it is fewer than the blocks that fit.
template <typename... Params>
int max_active_clusters(const char* name, void (*kernel)(Params...), int cluster_x, int threads,
                        size_t shared_bytes) {
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = static_cast<unsigned>(cluster_x);
  cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(cluster_x));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &cluster;
  config.numAttrs = 1;
  int clusters = 0;
  check(cudaOccupancyMaxActiveClusters(&clusters, kernel, &config), name);
  return clusters;
}

}  // namespace vamp::cuda
