// Experts' products by the matrix units, for all but few tokens, of which moe_skinny is faster.
// Both have a pair's result independent of other pairs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/moe_routing.h"

namespace vamp::cuda {

// Whether these are faster than moe_skinny: with Qwen3's shapes from a pair to three experts on.
inline bool moe_takes_grouped(int tokens, const MoeShape& shape) {
  return int64_t{3} * tokens * shape.top_k > shape.experts;
}

// activation[p] = silu(gate) * up of pair routing.pairs[p]: rows lie sorted by expert. Then y[pair]
// = activation[p] down[expert]ᵀ, begun for the first experts while others still have to get theirs.
//   x [tokens, H], activation [tokens * top_k, I], y [tokens * top_k, H], bf16; weights bf16; sums
//   in f32. H and I multiples of 8, expert strides of 16 bytes. Asynchronous, capturable.
// `part`: as in moe_skinny_gate_up. `in_place`: nothing that may still be running writes any
// expert's weights, so that reading them may begin while the launch in front ends, before it is
// known which ones tokens chose; otherwise only those are read.
void moe_grouped_experts(const __nv_bfloat16* x, int tokens, const MoeShape& shape,
                         const MoeWeights& weights, const Routing& routing,
                         __nv_bfloat16* activation, __nv_bfloat16* y, cudaStream_t stream,
                         ExpertPart part = {}, bool in_place = false);

// Of Routing::progress: a count for drawing tiles, one for each tile that a block may have of its
// own, one for each expert.
inline constexpr int kMoeEarlyTiles = 256;
inline size_t moe_progress_size(int experts) {
  return 1 + size_t{kMoeEarlyTiles} + static_cast<size_t>(experts);
}

// residual[t] += sum over a token's slots, in order, of weight * y[pair], in f32 until the end;
// out[t] = norm(residual[t]) unless out is null. hidden a multiple of 8, at most 8192.
void moe_grouped_combine_rms_norm(const __nv_bfloat16* y, int tokens, const MoeShape& shape,
                                  const Routing& routing, __nv_bfloat16* residual,
                                  const NormWeight& weight, __nv_bfloat16* out,
                                  cudaStream_t stream);

}  // namespace vamp::cuda
