// One-lane "vectors": the portable fallback, and the shape that every Vec has.
//
//   kWidth              lanes
//   kBlock              accumulators that sum_block() reduces at once
//   load(p), load(p, n) f32 lanes of bf16, f16 or f32 elements; the first n, zeros behind
//   store(p, v[, n])    f32, or rounded to bf16 (nearest, ties to even)
//   sum_block(acc, out) out[i] = sum of acc[i]'s lanes, in one fixed order
//   max(a, b)           b when either is NaN
#pragma once

#include <math.h>
#include <string.h>

#include "kernels/cpu/elements.h"

namespace vamp::cpu::VAMP_ISA {

inline float float_of(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}
inline uint32_t bits_of(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}

struct Vec {
  using F = float;
  static constexpr int kWidth = 1;
  static constexpr int kBlock = 4;
  static F zero() { return 0; }
  static F set(float x) { return x; }
  static F load(const float* p) { return *p; }
  static F load(const Bf16* p) { return float_of(static_cast<uint32_t>(p->bits) << 16); }
  static F load(const F16* p) {
    const uint32_t sign = (p->bits & 0x8000u) << 16, exponent = (p->bits >> 10) & 31u;
    const uint32_t mantissa = p->bits & 0x3FFu;
    if (exponent == 0) {
      const float value = static_cast<float>(mantissa) * 0x1p-24f;
      return sign ? -value : value;
    }
    const uint32_t biased = exponent == 31 ? 255 : exponent + 112;
    return float_of(sign | biased << 23 | mantissa << 13);
  }
  template <class T>
  static F load(const T* p, int n) {
    return n > 0 ? load(p) : 0;
  }
  static void store(float* p, F v) { *p = v; }
  static void store(Bf16* p, F v) {
    const uint32_t bits = bits_of(v);
    p->bits = v != v ? static_cast<uint16_t>((bits >> 16) | 0x40)
                     : static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
  }
  template <class T>
  static void store(T* p, F v, int n) {
    if (n > 0) store(p, v);
  }
  static F add(F a, F b) { return a + b; }
  static F sub(F a, F b) { return a - b; }
  static F mul(F a, F b) { return a * b; }
  static F div(F a, F b) { return a / b; }
  static F fma(F a, F b, F c) { return a * b + c; }
  static F max(F a, F b) { return a > b ? a : b; }
  static F min(F a, F b) { return a < b ? a : b; }
  static F exp(F x) { return x < -87.3f ? 0.0f : expf(x); }
  static void sum_block(const F* acc, float* out) {
    for (int i = 0; i < kBlock; ++i) out[i] = acc[i];
  }
  static float sum(F v) { return v; }
  static float max_lane(F v) { return v; }
  static void prefetch(const void*) {}
};

}  // namespace vamp::cpu::VAMP_ISA
