// Ops on the CPU.
//
// The kernels are our own rather than a library's: they read weights as the checkpoint lays them
// out, so that an expert may leave and come back as plain bytes, they need no preparation for a new
// number of rows, and they fix the order of every sum, which libraries do only for some shapes.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "kernels/ops.h"

namespace vamp {

// Instruction sets, each with its own order of reduction (so results differ in the last bits
// between them, never within one).
enum class CpuIsa {
  kScalar,      // any processor
  kAvx2,        // AVX2 + FMA + F16C
  kAvx512,      // AVX-512 F, BW, VL, DQ
  kAvx512Bf16,  // + AVX512_BF16
  kAmxBf16,     // + AMX-TILE, AMX-BF16
};
const char* cpu_isa_name(CpuIsa isa);
// What this processor and kernel allow, best last. Asks Linux for permission to use AMX tiles.
std::vector<CpuIsa> supported_cpu_isas();

struct CpuOpsOptions {
  // Threads that work on an operation, the caller's included. 0: one per core this process may use.
  int threads = 0;
  // bf16 or f32. Unset: bf16 where the processor multiplies it (the last two ISAs), else f32.
  std::optional<DType> activation;
  // Unset: the best that is supported and fits `activation`. For tests and comparisons.
  std::optional<CpuIsa> isa;
};

// Throws Error when the processor lacks what is asked for. bf16 activations work on every ISA (the
// last two multiply them, the others widen them first); f32 ones on all but the last two.
std::unique_ptr<Ops> make_cpu_ops(const CpuOpsOptions& options);

}  // namespace vamp
