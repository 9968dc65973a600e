#include <sys/syscall.h>
#include <unistd.h>

#include "kernels/cpu/cpu_ops.h"

namespace vamp {
namespace {

// Linux gives a process the tile registers on request only (Documentation/arch/x86/xstate.rst).
bool request_tiles() {
  constexpr long kArchReqXcompPerm = 0x1023, kXfeatureTileData = 18;
  return syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureTileData) == 0;
}

bool has_amx_bf16() {
  unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
  asm volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
  constexpr unsigned kBf16 = 1u << 22, kTile = 1u << 24;
  return (edx & kBf16) && (edx & kTile);
}

}  // namespace

const char* cpu_isa_name(CpuIsa isa) {
  switch (isa) {
    case CpuIsa::kScalar:
      return "scalar";
    case CpuIsa::kAvx2:
      return "avx2";
    case CpuIsa::kAvx512:
      return "avx512";
    case CpuIsa::kAvx512Bf16:
      return "avx512_bf16";
    case CpuIsa::kAmxBf16:
      return "amx_bf16";
  }
  return "?";
}

std::vector<CpuIsa> supported_cpu_isas() {
  __builtin_cpu_init();
  std::vector<CpuIsa> isas = {CpuIsa::kScalar};
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("f16c")) {
    return isas;
  }
  isas.push_back(CpuIsa::kAvx2);
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq")) {
    return isas;
  }
  isas.push_back(CpuIsa::kAvx512);
  if (!__builtin_cpu_supports("avx512bf16")) return isas;
  isas.push_back(CpuIsa::kAvx512Bf16);
  if (has_amx_bf16() && request_tiles()) isas.push_back(CpuIsa::kAmxBf16);
  return isas;
}

}  // namespace vamp
