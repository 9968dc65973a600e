// Gated DeltaNet's recurrence for prefill: 64 tokens at a time as matrix products (FlashInfer's
// kernel), where gated_delta_rule goes token by token.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/gated_delta.h"

namespace vamp::cuda {

// Whether it applies and is taken: for 8,192 tokens of one sequence it needs a fifth of the time;
// where the two meet was not measured.
inline bool gated_delta_takes_chunked(const GatedDeltaBatch& batch, const GatedDeltaShape& shape) {
  return shape.head_dim == 128 && batch.tokens >= 64 * batch.sequences;
}

// Snapshots of the states on the way: after every `every` tokens that a sequence has in this step
// (a multiple of 64; 0: none), where its tokens are cut into pieces of 64 and the last may be
// shorter: of n tokens ceil(n / 64) / (every / 64) are made. Sequence s's are numbers start[s] ...,
// each a state of value_heads * head_dim * head_dim floats.
struct GatedDeltaCheckpoints {
  int every = 0;
  const int64_t* start = nullptr;  // device [sequences]
  float* states = nullptr;
};

size_t gated_delta_chunked_scratch_bytes(int tokens, int sequences, const GatedDeltaShape& shape);

// As gated_delta_rule, with products of bf16: q, k, v and what a chunk adds to the state are
// rounded to it once more. head_dim 128; every sequence has at least one token; scratch of the size
// above, 256-byte aligned. Asynchronous, capturable for fixed numbers of tokens and sequences.
void gated_delta_rule_chunked(const __nv_bfloat16* convolved, const __nv_bfloat16* ba,
                              const GatedDeltaBatch& batch, const GatedDeltaShape& shape,
                              const GatedDeltaWeights& weights, __nv_bfloat16* o,
                              const GatedDeltaCheckpoints& checkpoints, void* scratch,
                              cudaStream_t stream);

}  // namespace vamp::cuda
