#define VAMP_ISA amx_bf16
// clang-format off
#include "kernels/cpu/vec_avx512.h"
#include "kernels/cpu/vec_exp.h"
#include "kernels/cpu/lanes_table.h"
#include "kernels/cpu/amx_matmul.h"
#include "kernels/cpu/amx_attention.h"
// clang-format on

namespace vamp::cpu {

const KernelTable& amx_bf16_kernels() {
  // Only bf16 weights go through tiles; f16 and f32 ones are exact in f32 alone.
  static constexpr KernelTable kTable = [] {
    KernelTable table = VAMP_ISA::lanes_table<Bf16>();
    table.matmul[0] = {VAMP_ISA::amx_packed_bytes, VAMP_ISA::amx_pack, VAMP_ISA::amx_multiply,
                       VAMP_ISA::amx_gate_up};
    table.attention_scratch_bytes = VAMP_ISA::AmxAttention::bytes;
    table.attention = VAMP_ISA::amx_attention;
    return table;
  }();
  return kTable;
}

}  // namespace vamp::cpu
