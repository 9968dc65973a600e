#include <algorithm>
#include <cmath>
#include <thread>

#include "base/error.h"
#include "kernels/cpu/cpu_ops_impl.h"
#include "kernels/cpu/sampler.h"

namespace vamp {
namespace cpu {
namespace {

// Below this many elements, handing work to other threads costs more than it saves.
constexpr int64_t kParallelElements = 32768;

NormArgs norm_args(const NormWeight& w) {
  return {w.data, w.eps, w.one_plus};
}

}  // namespace

CpuOps::CpuOps(const KernelTable& kernels, DType activation, int threads)
    : kernels_(kernels),
      activation_(activation),
      element_(element_of(activation)),
      pool_(threads),
      scratch_(static_cast<size_t>(threads)) {}

template <class Body>
void CpuOps::for_rows(int rows, int64_t work, const Body& body) {
  if (rows * work < kParallelElements || pool_.threads() == 1) {
    for (int r = 0; r < rows; ++r) body(r);
    return;
  }
  const int chunk = std::max(1, rows / (4 * pool_.threads()));
  pool_.parallel_for((rows + chunk - 1) / chunk, [&](int i, int) {
    for (int r = i * chunk; r < std::min(rows, (i + 1) * chunk); ++r) body(r);
  });
}

void CpuOps::embed(const WeightMatrix& table, const TokenId* ids, int rows, void* residual) {
  const Element type = element_of(table.dtype);
  const int64_t row_bytes = table.cols * element_bytes(type);
  for_rows(rows, table.cols, [&](int r) {
    VAMP_CHECK(ids[r] >= 0 && ids[r] < table.rows, "token {} of {}", ids[r], table.rows);
    kernels_.to_float(static_cast<const char*>(table.data) + ids[r] * row_bytes, type, table.cols,
                      static_cast<float*>(residual) + int64_t{r} * table.cols);
  });
}

void CpuOps::rms_norm(const void* residual, int rows, int cols, const NormWeight& weight,
                      void* out) {
  add_rms_norm(nullptr, const_cast<void*>(residual), rows, cols, weight, out);
}

void CpuOps::add_rms_norm(const void* delta, void* residual, int rows, int cols,
                          const NormWeight& weight, void* out) {
  const NormArgs norm = norm_args(weight);
  for_rows(rows, cols, [&](int r) {
    const int64_t offset = int64_t{r} * cols;
    kernels_.rms_norm(static_cast<float*>(residual) + offset, delta ? at(delta, offset) : nullptr,
                      cols, norm, at(out, offset));
  });
}

void CpuOps::head_norm(void* x, int64_t x_stride, int rows, int heads, int head_dim,
                       const NormWeight& weight) {
  const NormArgs norm = norm_args(weight);
  for_rows(rows, heads * head_dim,
           [&](int r) { kernels_.head_norm(at(x, r * x_stride), heads, head_dim, norm); });
}

void CpuOps::rope_angles(const RopeFrequencies& rope, const int32_t* positions, int rows,
                         float* cos_sin) {
  const int half = rope.rotary_dim / 2;
  for_rows(rows, int64_t{half} * 40, [&](int r) {
    float* row = cos_sin + int64_t{r} * 2 * half;
    for (int i = 0; i < half; ++i) {
      const float angle = static_cast<float>(positions[r]) * rope.inv_freq[static_cast<size_t>(i)];
      row[i] = std::cos(angle) * rope.attention_factor;
      row[half + i] = std::sin(angle) * rope.attention_factor;
    }
  });
}

void CpuOps::rope(void* x, int64_t x_stride, int rows, int heads, int head_dim, int rotary_dim,
                  const float* cos_sin) {
  for_rows(rows, heads * head_dim, [&](int r) {
    kernels_.rope(at(x, r * x_stride), heads, head_dim, rotary_dim,
                  cos_sin + int64_t{r} * rotary_dim);
  });
}

void CpuOps::silu_and_mul(const void* gate_up, int rows, int width, void* out) {
  for_rows(rows, int64_t{8} * width, [&](int r) {
    kernels_.silu_and_mul(at(gate_up, int64_t{r} * 2 * width), width, at(out, int64_t{r} * width));
  });
}

void CpuOps::sample(float* logits, int rows, int vocab, std::span<const SampleParams> params,
                    std::span<Sample> out) {
  VAMP_CHECK(static_cast<int>(params.size()) == rows && static_cast<int>(out.size()) == rows);
  VAMP_CHECK(vocab > 0);
  for_rows(rows, vocab, [&](int r) {
    const auto i = static_cast<size_t>(r);
    out[i] = sample_row(kernels_, logits + int64_t{r} * vocab, vocab, params[i]);
  });
}

const KernelTable& table_of(CpuIsa isa, Element activation) {
  switch (isa) {
    case CpuIsa::kScalar:
      return scalar_kernels(activation);
    case CpuIsa::kAvx2:
      return avx2_kernels(activation);
    case CpuIsa::kAvx512:
      return avx512_kernels(activation);
    case CpuIsa::kAvx512Bf16:
      return avx512_bf16_kernels();
    case CpuIsa::kAmxBf16:
      return amx_bf16_kernels();
  }
  throw InvariantError("unknown CpuIsa");
}

}  // namespace cpu

std::unique_ptr<Ops> make_cpu_ops(const CpuOpsOptions& options) {
  std::vector<CpuIsa> isas = supported_cpu_isas();
  if (options.activation == DType::kF32) {
    std::erase_if(isas, [](CpuIsa isa) { return isa >= CpuIsa::kAvx512Bf16; });
  }
  const CpuIsa isa = options.isa.value_or(isas.back());
  if (std::find(isas.begin(), isas.end(), isa) == isas.end()) {
    throw Error("instruction set {} is not available on this processor{}; the best is {}",
                cpu_isa_name(isa),
                options.activation == DType::kF32 ? " with float32 activations" : "",
                cpu_isa_name(isas.back()));
  }
  const DType activation =
      options.activation.value_or(isa >= CpuIsa::kAvx512Bf16 ? DType::kBf16 : DType::kF32);
  if (activation == DType::kF16) {
    throw Error("float16 activations are not supported on the CPU; use bfloat16 or float32");
  }
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const int threads = options.threads > 0 ? options.threads : std::max(1, cores);
  return std::make_unique<cpu::CpuOps>(cpu::table_of(isa, cpu::element_of(activation)), activation,
                                       threads);
}

}  // namespace vamp
