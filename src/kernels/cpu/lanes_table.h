// The table of an instruction set with lanes along the row.
#pragma once

#include "kernels/cpu/lanes_attention.h"

namespace vamp::cpu::VAMP_ISA {

template <class A>
constexpr KernelTable lanes_table() {
  return {
      .matmul = {lanes_matmul<A, Bf16>(), lanes_matmul<A, F16>(), lanes_matmul<A, float>()},
      .rms_norm = rms_norm<A>,
      .head_norm = head_norm<A>,
      .rope = rope<A>,
      .to_float = to_float,
      .activation_to = activation_to<A>,
      .silu_and_mul = silu_and_mul<A>,
      .combine = combine<A>,
      .max_logit = max_logit,
      .exp_logits = exp_logits,
      .attention_scratch_bytes = AttentionScratch::bytes,
      .attention = attention<A>,
  };
}

}  // namespace vamp::cpu::VAMP_ISA
