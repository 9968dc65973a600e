// For the tests of the kernels: tensors of any element type, seeded values, and every configuration
// of CpuOps that this machine can run.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "base/random.h"
#include "kernels/cpu/cpu_ops.h"

namespace vamp::test {

inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}
inline uint16_t float_to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}
// Normal f16 numbers only, cut off: values for tests are made through it.
inline uint16_t float_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const int exponent = static_cast<int>((bits >> 23) & 255) - 112;
  if (exponent <= 0) return static_cast<uint16_t>((bits >> 16) & 0x8000);
  return static_cast<uint16_t>(((bits >> 16) & 0x8000) | (static_cast<uint32_t>(exponent) << 10) |
                               ((bits >> 13) & 0x3FF));
}
inline float f16_to_float(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const float mantissa = static_cast<float>(bits & 0x3FF) / 1024.0f;
  const float value =
      exponent == 0 ? std::ldexp(mantissa, -14) : std::ldexp(1.0f + mantissa, exponent - 15);
  return bits & 0x8000 ? -value : value;
}

// Elements of one type, exactly as large as stated, so that a sanitizer sees reads past the end.
class Tensor {
 public:
  Tensor(DType dtype, size_t size) : dtype_(dtype), size_(size), bytes_(size * width()) {}
  Tensor(DType dtype, const std::vector<float>& values) : Tensor(dtype, values.size()) {
    for (size_t i = 0; i < size_; ++i) set(i, values[i]);
  }
  static Tensor random(DType dtype, size_t size, Random& random, double scale = 1.0) {
    Tensor t(dtype, size);
    for (size_t i = 0; i < size; ++i) t.set(i, static_cast<float>(random.normal() * scale));
    return t;
  }

  float operator[](size_t i) const {
    if (dtype_ == DType::kF32) {
      float value;
      std::memcpy(&value, bytes_.data() + 4 * i, 4);
      return value;
    }
    uint16_t bits;
    std::memcpy(&bits, bytes_.data() + 2 * i, 2);
    return dtype_ == DType::kBf16 ? bf16_to_float(bits) : f16_to_float(bits);
  }
  void set(size_t i, float value) {
    if (dtype_ == DType::kF32) {
      std::memcpy(bytes_.data() + 4 * i, &value, 4);
      return;
    }
    const uint16_t bits = dtype_ == DType::kBf16 ? float_to_bf16(value) : float_to_f16(value);
    std::memcpy(bytes_.data() + 2 * i, &bits, 2);
  }
  void* data() { return bytes_.data(); }
  const void* data() const { return bytes_.data(); }
  void* at(size_t i) { return bytes_.data() + i * width(); }
  const void* at(size_t i) const { return bytes_.data() + i * width(); }
  size_t width() const { return dtype_ == DType::kF32 ? 4 : 2; }
  size_t size() const { return size_; }
  DType dtype() const { return dtype_; }
  // Elements [begin, begin + count) as bytes, for comparisons to the bit.
  std::string bits(size_t begin, size_t count) const {
    return {reinterpret_cast<const char*>(bytes_.data() + begin * width()), count * width()};
  }
  std::string bits() const { return bits(0, size_); }

 private:
  DType dtype_;
  size_t size_;
  std::vector<std::byte> bytes_;
};

struct Config {
  CpuIsa isa;
  DType activation;
  std::unique_ptr<Ops> make(int threads = 1) const {
    return make_cpu_ops({.threads = threads, .activation = activation, .isa = isa});
  }
  std::string name() const {
    return std::string(cpu_isa_name(isa)) + (activation == DType::kBf16 ? "_bf16" : "_f32");
  }
};
inline std::ostream& operator<<(std::ostream& out, const Config& config) {
  return out << config.name();
}

// f32 and bf16 activations on every instruction set that has them.
inline std::vector<Config> all_configs() {
  std::vector<Config> configs;
  for (const CpuIsa isa : supported_cpu_isas()) {
    configs.push_back({isa, DType::kBf16});
    if (isa < CpuIsa::kAvx512Bf16) configs.push_back({isa, DType::kF32});
  }
  return configs;
}

class KernelsTest : public ::testing::TestWithParam<Config> {
 protected:
  DType activation() const { return GetParam().activation; }
  // What an output of this type may differ from the exact value by, for values of size `scale`.
  float tolerance(double scale) const {
    return static_cast<float>(scale * (activation() == DType::kBf16 ? 0.006 : 1e-5));
  }
  Random random_{7};
};

#define VAMP_INSTANTIATE_KERNELS_TEST(suite)                               \
  INSTANTIATE_TEST_SUITE_P(All, suite, ::testing::ValuesIn(all_configs()), \
                           [](const auto& i) { return i.param.name(); })

}  // namespace vamp::test
