#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace vamp::cuda {

// Two floats rounded to bf16 in one register, the first in its lower half.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

}  // namespace vamp::cuda
