// Between the floating-point types of checkpoints.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

#include "model/model_config.h"

namespace vamp {

inline float bf16_to_float(uint16_t bits) {
  return std::bit_cast<float>(uint32_t{bits} << 16);
}
float f16_to_float(uint16_t bits);
// To nearest, ties to even; NaN stays NaN, what is too large becomes infinity.
uint16_t float_to_bf16(float value);
uint16_t float_to_f16(float value);

// Copies `count` elements from one type to another. Neither pointer need be aligned.
void copy_elements(const std::byte* from, DType from_type, std::byte* to, DType to_type,
                   size_t count);

}  // namespace vamp
