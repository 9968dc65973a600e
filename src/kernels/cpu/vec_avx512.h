// Sixteen lanes: AVX-512 F, BW, VL, DQ. See vec_scalar.h for the contract.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/elements.h"

namespace vamp::cpu::VAMP_ISA {

struct Vec {
  using F = __m512;
  static constexpr int kWidth = 16;
  static constexpr int kBlock = 16;
  static __mmask16 mask(int n) {
    return static_cast<__mmask16>(n >= 16 ? 0xFFFF : n <= 0 ? 0 : (1u << n) - 1);
  }
  static F zero() { return _mm512_setzero_ps(); }
  static F set(float x) { return _mm512_set1_ps(x); }
  static F widen(__m256i raw) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(raw), 16));
  }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static F load(const Bf16* p) {
    return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load(const F16* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static F load(const float* p, int n) { return _mm512_maskz_loadu_ps(mask(n), p); }
  static F load(const Bf16* p, int n) { return widen(_mm256_maskz_loadu_epi16(mask(n), p)); }
  static F load(const F16* p, int n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask(n), p));
  }
  static __m256i narrow(F v) {
#ifdef __AVX512BF16__
    return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v));
#else
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7FFF)));
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(up, nan, quiet), 16));
#endif
  }
  static void store(float* p, F v) {
    _mm512_storeu_ps(p, v);
  }
  static void store(Bf16* p, F v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(v));
  }
  static void store(float* p, F v, int n) {
    _mm512_mask_storeu_ps(p, mask(n), v);
  }
  static void store(Bf16* p, F v, int n) {
    _mm256_mask_storeu_epi16(p, mask(n), narrow(v));
  }
  static F add(F a, F b) {
    return _mm512_add_ps(a, b);
  }
  static F sub(F a, F b) {
    return _mm512_sub_ps(a, b);
  }
  static F mul(F a, F b) {
    return _mm512_mul_ps(a, b);
  }
  static F div(F a, F b) {
    return _mm512_div_ps(a, b);
  }
  static F fma(F a, F b, F c) {
    return _mm512_fmadd_ps(a, b, c);
  }
  static F max(F a, F b) {
    return _mm512_max_ps(a, b);
  }
  static F min(F a, F b) {
    return _mm512_min_ps(a, b);
  }
  static F scale(F p, F n) {
    return _mm512_scalef_ps(p, n);
  }
  static F round(F x) {
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static F zero_below(F v, F x, F limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), v);
  }
  static F exp(F x);
  // Folds lanes (i, i+8), then (i, i+4), (i, i+2), (i, i+1).
  static void sum_block(const F* acc, float* out) {
    F f[8], g[4];
    for (int i = 0; i < 8; ++i) {  // 256-bit halves: acc[i] | acc[i+8]
      f[i] = _mm512_add_ps(_mm512_shuffle_f32x4(acc[i], acc[i + 8], 0x44),
                           _mm512_shuffle_f32x4(acc[i], acc[i + 8], 0xEE));
    }
    for (int i = 0; i < 4; ++i) {  // 128-bit quarters: acc[i] | acc[i+8] | acc[i+4] | acc[i+12]
      g[i] = _mm512_add_ps(_mm512_shuffle_f32x4(f[i], f[i + 4], 0x88),
                           _mm512_shuffle_f32x4(f[i], f[i + 4], 0xDD));
    }
    const F a =
        _mm512_add_ps(_mm512_shuffle_ps(g[0], g[1], 0x44), _mm512_shuffle_ps(g[0], g[1], 0xEE));
    const F b =
        _mm512_add_ps(_mm512_shuffle_ps(g[2], g[3], 0x44), _mm512_shuffle_ps(g[2], g[3], 0xEE));
    const F c = _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xDD));
    _mm512_storeu_ps(out, _mm512_shuffle_f32x4(c, c, _MM_SHUFFLE(3, 1, 2, 0)));
  }
  static float sum(F v) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_shuffle_ps(s, s, 1)));
  }
  static float max_lane(F v) {
    return _mm512_reduce_max_ps(v);
  }
  static void prefetch(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
  }
};

}  // namespace vamp::cpu::VAMP_ISA
