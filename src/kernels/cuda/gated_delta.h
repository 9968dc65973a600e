// Gated DeltaNet on the device: see kernels/gated_delta.h for what is computed. Activations are
// bf16, states and sums f32; a state lies here as [value_heads, value dim, key dim]. Convolution,
// rule and norm take steps of any kind; a decode step has a kernel for all three, long prefills one
// for the rule (gated_delta_chunked.h). A sequence's result does not depend on the others.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/gated_delta.h"

namespace vamp::cuda {

// All pointers of batch and weights on the device. head_dim 32, 64 or 128, conv_width at most 4.
// Asynchronous, capturable for fixed numbers of tokens and sequences.

// out [tokens, channels]. The convolution's states 16-byte aligned, conv_stride a multiple of 8.
void gated_delta_conv(const __nv_bfloat16* qkvz, const GatedDeltaBatch& batch,
                      const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                      __nv_bfloat16* out, cudaStream_t stream);

// o [tokens, value_heads, head_dim]
void gated_delta_rule(const __nv_bfloat16* convolved, const __nv_bfloat16* ba,
                      const GatedDeltaBatch& batch, const GatedDeltaShape& shape,
                      const GatedDeltaWeights& weights, __nv_bfloat16* o, cudaStream_t stream);

// out [tokens, value_heads, head_dim], may be o
void gated_delta_norm(const __nv_bfloat16* o, const __nv_bfloat16* qkvz, int tokens,
                      const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                      __nv_bfloat16* out, cudaStream_t stream);

// All three in one launch for a decode step (batch.single), at head_dim 128.
inline bool gated_delta_takes_decode(const GatedDeltaBatch& batch, const GatedDeltaShape& shape) {
  return batch.single && shape.head_dim == 128 && shape.conv_width <= 4 &&
         shape.value_heads % shape.key_heads == 0 && shape.ratio() <= 8;
}
// out [tokens, value_heads, head_dim]. States 16-byte aligned, state_stride a multiple of 4.
// Memories and the batch's arrays are read before the kernel in front has ended: they must have
// been written before the first of a run of overlapped kernels.
void gated_delta_decode(const __nv_bfloat16* qkvz, const __nv_bfloat16* ba,
                        const GatedDeltaBatch& batch, const GatedDeltaShape& shape,
                        const GatedDeltaWeights& weights, __nv_bfloat16* out, cudaStream_t stream);

}  // namespace vamp::cuda
