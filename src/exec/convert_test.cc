#include "exec/convert.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

namespace vamp {
namespace {

TEST(Convert, HalfPrecisionThereAndBack) {
  for (int bits = 0; bits < 65536; ++bits) {
    const float value = f16_to_float(static_cast<uint16_t>(bits));
    if (std::isnan(value)) continue;
    ASSERT_EQ(float_to_f16(value), bits) << value;
    // Halfway to the next one goes to the even one; a little more goes up.
    const float next = f16_to_float(static_cast<uint16_t>(bits + 1));
    if ((bits & 0x7FFF) >= 0x7BFF) continue;
    const float half = (value + next) / 2;
    ASSERT_EQ(float_to_f16(half), bits + (bits & 1)) << value;
    ASSERT_EQ(float_to_f16(std::nextafter(half, next)), bits + 1) << value;
  }
  EXPECT_EQ(f16_to_float(0x3555), 0.333251953125f);
  EXPECT_EQ(float_to_f16(1e6f), 0x7C00);
  EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(NAN))));
}

TEST(Convert, Bf16RoundsToNearestEven) {
  EXPECT_EQ(float_to_bf16(1.0f), 0x3F80);
  EXPECT_EQ(float_to_bf16(1.00390625f), 0x3F80);  // halfway: to the even one
  EXPECT_EQ(float_to_bf16(1.01171875f), 0x3F82);
  EXPECT_EQ(float_to_bf16(3.4e38f), 0x7F80);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(NAN))));
}

TEST(Convert, CopiesUnalignedElements) {
  const std::vector<float> values = {1.0f, -2.5f, 0.0f, 1e-3f};
  std::vector<std::byte> f32(17), bf16(9), back(17);
  copy_elements(reinterpret_cast<const std::byte*>(values.data()), DType::kF32, f32.data() + 1,
                DType::kF32, 4);
  copy_elements(f32.data() + 1, DType::kF32, bf16.data() + 1, DType::kBf16, 4);
  copy_elements(bf16.data() + 1, DType::kBf16, back.data() + 1, DType::kF32, 4);
  for (size_t i = 0; i < values.size(); ++i) {
    float got;
    std::memcpy(&got, back.data() + 1 + 4 * i, 4);
    EXPECT_NEAR(got, values[i], std::fabs(values[i]) / 256);
  }
}

}  // namespace
}  // namespace vamp
