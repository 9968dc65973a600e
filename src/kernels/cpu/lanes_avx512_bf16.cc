#define VAMP_ISA lanes_avx512_bf16
// clang-format off
#include "kernels/cpu/vec_avx512.h"
#include "kernels/cpu/vec_exp.h"
#include "kernels/cpu/lanes_table.h"
// clang-format on

namespace vamp::cpu {

const KernelTable& avx512_bf16_kernels() {
  static constexpr KernelTable kTable = VAMP_ISA::lanes_table<Bf16>();
  return kTable;
}

}  // namespace vamp::cpu
