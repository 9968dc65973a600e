// For the tests that hold a kernel to plain double-precision loops on the host.
#pragma once

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/random.h"

namespace vamp::cuda {

using bf16 = __nv_bfloat16;

inline std::vector<bf16> random_bf16(Random& random, size_t count, double scale) {
  std::vector<bf16> v(count);
  for (bf16& x : v) x = __float2bfloat16(static_cast<float>(random.normal() * scale));
  return v;
}

// bf16 keeps 8 bits: one rounding of the result is 2^-9 of it; the f32 sum's own error is far
// below.
inline void expect_close(const std::vector<bf16>& got, const std::vector<double>& want,
                         double scale) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    const double g = __bfloat162float(got[i]);
    ASSERT_NEAR(g, want[i], std::abs(want[i]) * 0x1p-8 + scale * 1e-5) << "at " << i;
  }
}

}  // namespace vamp::cuda
