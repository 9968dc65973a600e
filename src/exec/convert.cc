#include "exec/convert.h"

#include <cmath>
#include <cstring>

namespace vamp {
namespace {

float load(const std::byte* from, DType type) {
  if (type == DType::kF32) {
    float value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, from, sizeof bits);
  return type == DType::kBf16 ? bf16_to_float(bits) : f16_to_float(bits);
}

void store(float value, std::byte* to, DType type) {
  if (type == DType::kF32) {
    std::memcpy(to, &value, sizeof value);
    return;
  }
  const uint16_t bits = type == DType::kBf16 ? float_to_bf16(value) : float_to_f16(value);
  std::memcpy(to, &bits, sizeof bits);
}

}  // namespace

float f16_to_float(uint16_t bits) {
  const int exponent = (bits >> 10) & 31;
  const auto fraction = static_cast<float>(bits & 1023);
  const float sign = (bits & 0x8000) != 0 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(1024.0f + fraction, exponent - 25);
}

uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

uint16_t float_to_f16(float value) {
  const auto sign = static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16 & 0x8000);
  if (std::isnan(value)) return sign | 0x7E00;
  const float size = std::fabs(value);
  if (size >= 65520.0f) return sign | 0x7C00;  // halfway to 2^16 and beyond
  int exponent;
  std::frexp(size, &exponent);  // size in [2^(exponent-1), 2^exponent)
  exponent = size < 0x1p-14f ? -13 : exponent;
  // In units of the last place; nearbyint rounds ties to even.
  const auto units = static_cast<uint16_t>(std::nearbyint(std::ldexp(size, 11 - exponent)));
  return static_cast<uint16_t>(sign | (units + ((exponent + 13) << 10)));
}

void copy_elements(const std::byte* from, DType from_type, std::byte* to, DType to_type,
                   size_t count) {
  if (from_type == to_type) {
    std::memcpy(to, from, count * dtype_bytes(to_type));
    return;
  }
  const size_t from_bytes = dtype_bytes(from_type), to_bytes = dtype_bytes(to_type);
  for (size_t i = 0; i < count; ++i) {
    store(load(from + i * from_bytes, from_type), to + i * to_bytes, to_type);
  }
}

}  // namespace vamp
