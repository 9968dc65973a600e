// For the tests of the CUDA ops.
#pragma once

#include "kernels/cuda/device_buffer.h"
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

// Gated DeltaNet's states as the device has them from states as the CPU has them, or back.
inline test::Tensor transposed(const test::Tensor& states, int dim) {
  test::Tensor out(DType::kF32, states.size());
  const auto D = static_cast<size_t>(dim);
  for (size_t i = 0; i < states.size(); ++i)
    out.set(i / (D * D) * D * D + i % D * D + i / D % D, states[i]);
  return out;
}

}  // namespace vamp::cuda
