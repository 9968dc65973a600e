// Gated DeltaNet on the CPU: the definition, token by token, that other backends are checked
// against. One thread.
#pragma once

#include "kernels/gated_delta.h"

namespace vamp::cpu {

// out[t] = SiLU(convolution), [tokens, channels] activations, from rows of qkvz; the states take
// the last inputs. `activation` (kF32 or kBf16) is the type of qkvz, of the convolution's states
// and of out.
void gated_delta_conv(const void* qkvz, DType activation, const GatedDeltaBatch& batch,
                      const GatedDeltaShape& shape, const GatedDeltaWeights& weights, void* out);

// o[t] = the recurrence's output, [tokens, value_heads, head_dim] activations, from convolved rows
// and rows of ba (activations); the states advance by the sequences' tokens.
void gated_delta_rule(const void* convolved, const void* ba, DType activation,
                      const GatedDeltaBatch& batch, const GatedDeltaShape& shape,
                      const GatedDeltaWeights& weights, void* o);

// out[t, head] = RMSNorm(o[t, head]) · SiLU(z): activations, out may be o.
void gated_delta_norm(const void* o, const void* qkvz, DType activation, int tokens,
                      const GatedDeltaShape& shape, const GatedDeltaWeights& weights, void* out);

}  // namespace vamp::cpu
