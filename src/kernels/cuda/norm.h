// RMSNorm fused with what precedes it in a decoder layer: the residual add, or the experts'
// weighted sum and the residual add.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/moe_routing.h"
#include "kernels/ops.h"

namespace vamp::cuda {

// Largest row that a norm takes.
inline constexpr int kNormMaxCols = 8192;

// residual[r] += delta[r] when delta is given; out[r] = norm(residual[r]).
//   residual, delta, out [rows, cols] bf16, cols a multiple of 8; out may be null (then only the
//   add).
// The norm is computed from the bf16 values that residual then holds. Asynchronous, capturable.
void add_rms_norm(const __nv_bfloat16* delta, __nv_bfloat16* residual, int rows, int cols,
                  const NormWeight& weight, __nv_bfloat16* out, cudaStream_t stream);

// residual[t] += sum over a token's slots, in order, of weight * y[pair]; out[t] =
// norm(residual[t]).
//   y [tokens * top_k, hidden] f32.
void moe_combine_rms_norm(const float* y, int tokens, const MoeShape& shape, const Routing& routing,
                          __nv_bfloat16* residual, const NormWeight& weight, __nv_bfloat16* out,
                          cudaStream_t stream);

}  // namespace vamp::cuda
