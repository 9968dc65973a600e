// Dense products with few rows (decode): y = x Wᵀ, bound by the bytes of W.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

namespace vamp::cuda {

// Most rows (tokens) that linear_skinny takes.
inline constexpr int kSkinnyMaxRows = 16;

// y[t][n] = sum_k x[t][k] W[n][k] (+ bias[n]) (+ y[t][n] when accumulate)
//   x [T, K], W [N, K], y [T, N] bf16, row-major; sums in f32; bias [N] bf16 or null.
// 1 <= T <= kSkinnyMaxRows; K a multiple of 8; x and W 16-byte aligned. A row's result does not
// depend on T or on the other rows. Asynchronous on `stream`, capturable.
void linear_skinny(const __nv_bfloat16* x, const __nv_bfloat16* w, const __nv_bfloat16* bias,
                   __nv_bfloat16* y, int T, int N, int K, bool accumulate, cudaStream_t stream);

// As above with f32 outputs (router logits, vocabulary head).
void linear_skinny_f32(const __nv_bfloat16* x, const __nv_bfloat16* w, float* y, int T, int N,
                       int K, cudaStream_t stream);

}  // namespace vamp::cuda
