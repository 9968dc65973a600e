#define VAMP_ISA lanes_avx512
// clang-format off
#include "kernels/cpu/vec_avx512.h"
#include "kernels/cpu/vec_exp.h"
#include "kernels/cpu/lanes_table.h"
// clang-format on

namespace vamp::cpu {

const KernelTable& avx512_kernels(Element activation) {
  static constexpr KernelTable kBf16Table = VAMP_ISA::lanes_table<Bf16>();
  static constexpr KernelTable kF32Table = VAMP_ISA::lanes_table<float>();
  return activation == Element::kBf16 ? kBf16Table : kF32Table;
}

}  // namespace vamp::cpu
