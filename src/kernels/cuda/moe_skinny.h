// Experts' products for few tokens (decode): every activated expert's bytes are read once, and
// those bytes are the whole cost.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/moe_routing.h"

namespace vamp::cuda {

// activation[pair][i] = silu(gate) * up, of each (token, expert) pair that routing lists.
//   x [tokens, H], activation [tokens * top_k, I], bf16; weights bf16; sums in f32. H and I
//   multiples of 8.
// A pair's result does not depend on the other pairs. Asynchronous, capturable.
// `part`: only pairs of those experts; of experts from one on it starts when all that is in front
// on the stream, joined ones too, has ended.
void moe_skinny_gate_up(const __nv_bfloat16* x, int tokens, const MoeShape& shape,
                        const MoeWeights& weights, const Routing& routing,
                        __nv_bfloat16* activation, cudaStream_t stream, ExpertPart part = {});

// y[pair] = activation[pair] down[expert]ᵀ:  y [tokens * top_k, H] f32. Must be the launch right
// after moe_skinny_gate_up on the stream: its reading of weights begins while that one ends.
void moe_skinny_down(const __nv_bfloat16* activation, int tokens, const MoeShape& shape,
                     const MoeWeights& weights, const Routing& routing, float* y,
                     cudaStream_t stream, ExpertPart part = {});

}  // namespace vamp::cuda
