#include "kernels/cuda/linear_skinny.h"

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/skinny_gemm.cuh"

namespace vamp::cuda {
namespace {

template <int kColumnSets, typename Out>
__global__ void __launch_bounds__(skinny::kThreads)
    linear_kernel(const __nv_bfloat16* __restrict__ x, const __nv_bfloat16* __restrict__ w,
                  const __nv_bfloat16* __restrict__ bias, Out* __restrict__ y, int T, int N, int K,
                  bool accumulate) {
  __shared__ skinny::Shared<kColumnSets> shared;
  const int group = threadIdx.x % 32 / 4, first = blockIdx.x * skinny::kTileRows;
  const __nv_bfloat16* rows[4];
#pragma unroll
  for (int r = 0; r < 4; ++r) {
    const int n = first + group + 8 * r;
    rows[r] = n < N ? w + static_cast<size_t>(n) * K : nullptr;
  }
  const __nv_bfloat16* columns[kColumnSets];
#pragma unroll
  for (int s = 0; s < kColumnSets; ++s) {
    const int t = 8 * s + group;
    columns[s] = t < T ? x + static_cast<size_t>(t) * K : nullptr;
  }
  skinny::accumulate<kColumnSets>(rows, columns, K, shared);
  for (int i = threadIdx.x; i < T * skinny::kTileRows; i += skinny::kThreads) {
    const int t = i / skinny::kTileRows, row = i % skinny::kTileRows, n = first + row;
    if (n >= N) continue;
    float sum = skinny::total<kColumnSets>(shared, t, row);
    if (bias) sum += __bfloat162float(bias[n]);
    Out& out = y[static_cast<size_t>(t) * N + n];
    if (accumulate) sum += static_cast<float>(out);
    out = static_cast<Out>(sum);
  }
}

template <typename Out>
void launch(const __nv_bfloat16* x, const __nv_bfloat16* w, const __nv_bfloat16* bias, Out* y, int T,
            int N, int K, bool accumulate, cudaStream_t stream) {
  VAMP_CHECK(T >= 1 && T <= kSkinnyMaxRows && K % 8 == 0, "linear_skinny: T={} N={} K={}", T, N, K);
  const int blocks = (N + skinny::kTileRows - 1) / skinny::kTileRows;
  const auto kernel = T <= 8 ? linear_kernel<1, Out> : linear_kernel<2, Out>;
  kernel<<<blocks, skinny::kThreads, 0, stream>>>(x, w, bias, y, T, N, K, accumulate);
  check_launch("linear_skinny");
}

}  // namespace

void linear_skinny(const __nv_bfloat16* x, const __nv_bfloat16* w, const __nv_bfloat16* bias,
                   __nv_bfloat16* y, int T, int N, int K, bool accumulate, cudaStream_t stream) {
  launch(x, w, bias, y, T, N, K, accumulate, stream);
}

void linear_skinny_f32(const __nv_bfloat16* x, const __nv_bfloat16* w, float* y, int T, int N, int K,
                       cudaStream_t stream) {
  launch(x, w, nullptr, y, T, N, K, false, stream);
}

}  // namespace vamp::cuda
