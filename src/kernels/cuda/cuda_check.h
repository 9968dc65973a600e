// Every CUDA call's return code, turned into an Error that says what was being done.
#pragma once

#include <cuda_runtime_api.h>

#include "base/error.h"

namespace vamp::cuda {

inline void check(cudaError_t status, const char* doing) {
  if (status != cudaSuccess) [[unlikely]] {
    throw Error("CUDA: {} failed: {} ({})", doing, cudaGetErrorString(status),
                cudaGetErrorName(status));
  }
}

// After a kernel launch: launch errors only, never a device synchronisation.
inline void check_launch(const char* kernel) {
  check(cudaGetLastError(), kernel);
}

}  // namespace vamp::cuda
