#include <cuda_bf16.h>

#include "kernels/cuda/add_bias.h"
#include "kernels/cuda/cuda_check.h"

namespace vamp::cuda {
namespace {

constexpr int kThreads = 256;

template <typename Out>
__global__ void add_bias_kernel(Out* out, int64_t stride, int cols, const float* bias) {
  Out* const row = out + blockIdx.x * stride;
  const int n = blockIdx.y * kThreads + threadIdx.x;
  if (n < cols) row[n] = static_cast<Out>(static_cast<float>(row[n]) + bias[n]);
}

template <typename Out>
void launch(const LinearPart& part, int rows, cudaStream_t stream) {
  const dim3 grid(rows, (part.weight.rows + kThreads - 1) / kThreads);
  add_bias_kernel<<<grid, kThreads, 0, stream>>>(static_cast<Out*>(part.out), part.out_stride,
                                                 part.weight.rows, part.bias);
  check_launch("add_bias");
}

}  // namespace

void add_bias(const LinearPart& part, int rows, cudaStream_t stream) {
  if (rows == 0) return;
  if (part.kind == LinearPart::Out::kFloat)
    launch<float>(part, rows, stream);
  else
    launch<__nv_bfloat16>(part, rows, stream);
}

}  // namespace vamp::cuda
