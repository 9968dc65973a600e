// For the tests of the CUDA ops.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/moe_grouped.h"
#include "kernels/test_support.h"

namespace vamp::cuda {

inline bool has_gpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}
#define SKIP_WITHOUT_GPU() \
  if (!has_gpu()) GTEST_SKIP() << "no GPU"

// The bytes of a host tensor on the device.
class OnDevice {
 public:
  explicit OnDevice(const test::Tensor& t) : type_(t.dtype()), buffer_(t.size() * t.width()) {
    check(cudaMemcpy(buffer_.get(), t.data(), buffer_.size(), cudaMemcpyHostToDevice), "copy");
  }
  __nv_bfloat16* bf() const { return reinterpret_cast<__nv_bfloat16*>(buffer_.get()); }
  float* f32() const { return reinterpret_cast<float*>(buffer_.get()); }
  test::Tensor back() const {
    test::Tensor t(type_, buffer_.size() / (type_ == DType::kF32 ? 4 : 2));
    check(cudaMemcpy(t.data(), buffer_.get(), buffer_.size(), cudaMemcpyDeviceToHost), "copy");
    return t;
  }

 private:
  DType type_;
  DeviceBuffer<char> buffer_;
};

// What route() fills, for at most T tokens.
struct RoutingBuffers {
  DeviceBuffer<int> experts, pairs, start, num_work, work_start, progress;
  DeviceBuffer<WorkItem> work;
  DeviceBuffer<float> weights;
  DeviceBuffer<uint32_t> counts;
  RoutingBuffers(int T, int E, int top_k)
      : experts(pairs_of(T, top_k)),
        pairs(pairs_of(T, top_k)),
        start(static_cast<size_t>(E) + 1),
        num_work(1),
        work_start(static_cast<size_t>(E) + 1),
        progress(std::vector<int>(moe_progress_size(E))),
        work(static_cast<size_t>(max_work_items(T, {E, top_k, 0, 0})) + 1),
        weights(pairs_of(T, top_k)),
        counts(static_cast<size_t>(E)) {
    check(cudaMemset(counts.get(), 0, counts.size() * 4), "clearing counts");
  }
  static size_t pairs_of(int T, int top_k) { return static_cast<size_t>(std::max(1, T * top_k)); }
  Routing view() const {
    Routing r;
    r.experts = experts.get();
    r.weights = weights.get();
    r.expert_start = start.get();
    r.pairs = pairs.get();
    r.work = work.get();
    r.num_work = num_work.get();
    r.work_start = work_start.get();
    r.expert_counts = counts.get();
    r.progress = progress.get();
    return r;
  }
};

// Gated DeltaNet's states as the device has them from states as the CPU has them, or back.
inline test::Tensor transposed(const test::Tensor& states, int dim) {
  test::Tensor out(DType::kF32, states.size());
  const auto D = static_cast<size_t>(dim);
  for (size_t i = 0; i < states.size(); ++i)
    out.set(i / (D * D) * D * D + i % D * D + i / D % D, states[i]);
  return out;
}

inline test::Tensor widened(const test::Tensor& t) {
  test::Tensor out(DType::kF32, t.size());
  for (size_t i = 0; i < t.size(); ++i) out.set(i, t[i]);
  return out;
}
// Values that show when something was left unwritten.
inline test::Tensor poison(DType type, size_t size) {
  return test::Tensor(type, std::vector<float>(size, 1e30f));
}

inline std::unique_ptr<Ops> cpu() {
  return make_cpu_ops({.threads = 0, .activation = DType::kF32, .isa = {}});
}

// `roundings` values of size `scale` were rounded to bf16 (2^-9 each) on the way.
inline void expect_near(const test::Tensor& got, const test::Tensor& want, int roundings,
                        float scale) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i],
                static_cast<float>(roundings) * 0x1p-9f * (std::abs(want[i]) + scale))
        << "at " << i;
  }
}

// For references in double.
inline std::vector<__nv_bfloat16> random_bf16(Random& random, size_t count, double scale) {
  std::vector<__nv_bfloat16> v(count);
  for (__nv_bfloat16& x : v) x = __float2bfloat16(static_cast<float>(random.normal() * scale));
  return v;
}

// bf16 keeps 8 bits: one rounding of the result is 2^-9 of it; the f32 sum's own error is far
// below.
inline void expect_close(const std::vector<__nv_bfloat16>& got, const std::vector<double>& want,
                         double scale) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double g = __bfloat162float(got[i]);
    ASSERT_NEAR(g, want[i], std::abs(want[i]) * 0x1p-8 + scale * 1e-5) << "at " << i;
  }
}

}  // namespace vamp::cuda
