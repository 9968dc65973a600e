#include <cuda_bf16.h>

#include "gpu/gpu_bench.h"

namespace vamp::cuda {
namespace {

__device__ float normal(uint64_t key) {
  uint64_t z = key * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  z ^= z >> 31;
  const float u = (static_cast<uint32_t>(z >> 40) + 1) * 0x1p-24f;
  const float v = static_cast<uint32_t>(z & 0xffffff) * 0x1p-24f;
  return sqrtf(-2 * __logf(u)) * __cosf(6.2831853f * v);
}

template <typename T>
__global__ void fill_kernel(T* data, size_t count, float scale, uint64_t seed) {
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < count;
       i += stride)
    data[i] = static_cast<T>(scale * normal(seed * 0xD1342543DE82EF95ull + i));
}

}  // namespace

void fill_normal(void* data, size_t count, float scale, uint64_t seed) {
  fill_kernel<<<1056, 256>>>(static_cast<__nv_bfloat16*>(data), count, scale, seed);
  check_launch("fill_normal");
}
void fill_normal_f32(float* data, size_t count, float scale, uint64_t seed) {
  fill_kernel<<<1056, 256>>>(data, count, scale, seed);
  check_launch("fill_normal_f32");
}

}  // namespace vamp::cuda
