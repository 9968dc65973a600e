// Eight lanes: AVX2, FMA, F16C. See vec_scalar.h for the contract.
#pragma once

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/elements.h"

namespace vamp::cpu::VAMP_ISA {

struct Vec {
  using F = __m256;
  static constexpr int kWidth = 8;
  static constexpr int kBlock = 8;
  static F zero() { return _mm256_setzero_ps(); }
  static F set(float x) { return _mm256_set1_ps(x); }
  static F load(const float* p) { return _mm256_loadu_ps(p); }
  static F load(const Bf16* p) {
    const __m128i raw = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(raw), 16));
  }
  static F load(const F16* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  template <class T>
  static F load(const T* p, int n) {
    if (n >= kWidth) return load(p);
    T padded[kWidth];
    memset(padded, 0, sizeof padded);
    for (int i = 0; i < n; ++i) padded[i] = p[i];
    return load(padded);
  }
  static void store(float* p, F v) { _mm256_storeu_ps(p, v); }
  static void store(Bf16* p, F v) {
    const __m256i bits = _mm256_castps_si256(v);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i bias = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7FFF));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    const __m256i rounded = _mm256_blendv_epi8(_mm256_add_epi32(bits, bias), quiet, nan);
    const __m256i high = _mm256_srli_epi32(rounded, 16);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(p),
        _mm_packus_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1)));
  }
  template <class T>
  static void store(T* p, F v, int n) {
    if (n >= kWidth) return store(p, v);
    T padded[kWidth];
    store(padded, v);
    for (int i = 0; i < n; ++i) p[i] = padded[i];
  }
  static F add(F a, F b) { return _mm256_add_ps(a, b); }
  static F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  static F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static F div(F a, F b) { return _mm256_div_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static F max(F a, F b) { return _mm256_max_ps(a, b); }
  static F min(F a, F b) { return _mm256_min_ps(a, b); }
  // p · 2^n for integral n in [-126, 127].
  static F scale(F p, F n) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_mul_ps(p, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
  }
  static F round(F x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
  // v where x >= limit or x is NaN, else 0.
  static F zero_below(F v, F x, F limit) {
    return _mm256_and_ps(v, _mm256_cmp_ps(x, limit, _CMP_NLT_UQ));
  }
  static F exp(F x);
  static float sum(F v) {
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
  }
  static float max_lane(F v) {
    __m128 s = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_max_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_max_ss(s, _mm_shuffle_ps(s, s, 1)));
  }
  // Lanes fold as (i, i+4), then (i, i+2), then (i, i+1): as sum() does.
  static void sum_block(const F* acc, float* out) {
    F fold[4];
    for (int i = 0; i < 4; ++i) {
      fold[i] = _mm256_add_ps(_mm256_permute2f128_ps(acc[i], acc[i + 4], 0x20),
                              _mm256_permute2f128_ps(acc[i], acc[i + 4], 0x31));
    }
    // Each 128-bit half holds four partial sums: of acc[i] below, of acc[i+4] above.
    const F a = _mm256_add_ps(_mm256_shuffle_ps(fold[0], fold[1], 0x44),
                              _mm256_shuffle_ps(fold[0], fold[1], 0xEE));
    const F b = _mm256_add_ps(_mm256_shuffle_ps(fold[2], fold[3], 0x44),
                              _mm256_shuffle_ps(fold[2], fold[3], 0xEE));
    _mm256_storeu_ps(out,
                     _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xDD)));
  }
  static void prefetch(const void* p) { _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0); }
};

}  // namespace vamp::cpu::VAMP_ISA
