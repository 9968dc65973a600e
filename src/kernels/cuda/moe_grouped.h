// Experts' products for many tokens (prefill, large decode batches), by the matrix units. For few
// tokens an expert moe_skinny is faster; both have a pair's result independent of other pairs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/moe_routing.h"

namespace vamp::cuda {

// Whether these are faster than moe_skinny: measured with Qwen3-30B-A3B's shape, equal at four
// tokens an expert on average.
inline bool moe_takes_grouped(int tokens, const MoeShape& shape) {
  return static_cast<int64_t>(tokens) * shape.top_k > int64_t{4} * shape.experts;
}

// activation[p] = silu(gate) * up of pair routing.pairs[p]: rows lie sorted by expert, so that the
// next product reads them in one piece.
//   x [tokens, H], activation [tokens * top_k, I], bf16; weights bf16; sums in f32. H and I
//   multiples of 8, expert strides of 16 bytes. Weights of experts that no token chose are not
//   read. Asynchronous, capturable.
// `part`: as in moe_skinny_gate_up.
void moe_grouped_gate_up(const __nv_bfloat16* x, int tokens, const MoeShape& shape,
                         const MoeWeights& weights, const Routing& routing,
                         __nv_bfloat16* activation, cudaStream_t stream, ExpertPart part = {});

// y[pair] = activation[p] down[expert]ᵀ of pair routing.pairs[p]:  y [tokens * top_k, H] bf16. Must
// be the launch right after moe_grouped_gate_up on the stream: its reading of weights begins while
// that one ends.
void moe_grouped_down(const __nv_bfloat16* activation, int tokens, const MoeShape& shape,
                      const MoeWeights& weights, const Routing& routing, __nv_bfloat16* y,
                      cudaStream_t stream, ExpertPart part = {});

// residual[t] += sum over a token's slots, in order, of weight * y[pair], in f32 until the end;
// out[t] = norm(residual[t]) unless out is null. hidden a multiple of 8, at most 8192.
void moe_grouped_combine_rms_norm(const __nv_bfloat16* y, int tokens, const MoeShape& shape,
                                  const Routing& routing, __nv_bfloat16* residual,
                                  const NormWeight& weight, __nv_bfloat16* out,
                                  cudaStream_t stream);

}  // namespace vamp::cuda
