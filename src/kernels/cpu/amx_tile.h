// AMX tiles as the bf16 kernels use them.
//
// A tile product takes 16 rows of A (64 bytes: 32 elements of k, as they lie in memory) and a B
// tile of k pairs [16][columns][2], and adds [16][columns] f32. We let weights (or keys) be A, read
// where they are, and pack activations (or queries) into B; a column is one activation row. What a
// column gets does not depend on the other columns or on how many there are.
#pragma once

#include <immintrin.h>

#include "kernels/cpu/kernel_table.h"

namespace vamp::cpu::VAMP_ISA {

inline constexpr int kTileRows = 16;
inline constexpr int kTileK = 32;
inline constexpr int kTileColumns = 16;

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t column_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tiles 0-3 accumulate, 4-5 are A, 6-7 are B. Declared for each number of columns.
class TileScope {
 public:
  explicit TileScope(int columns) {
    TileConfig config;
    for (int i = 0; i < 8; ++i) {
      config.rows[i] = kTileRows;
      config.column_bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? 64 : 4 * columns);
    }
    asm volatile("" ::: "memory");
    _tile_loadconfig(&config);
  }
  ~TileScope() { _tile_release(); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

// GCC does not know that tile loads read memory: nothing written before this is held back.
inline void before_tile_loads() {
  asm volatile("" ::: "memory");
}

// rows[i] lane j ↔ rows[j] lane i, 32 bits each.
inline void transpose16(__m512i* r) {
  __m512i t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xDD);
    t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xDD);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xDD);
    r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xDD);
  }
}

// Two rows of 16 f32 → 16 pairs of bf16 (low, high): one row of a B tile.
inline __m512i pair_rows(__m512 low, __m512 high) {
  const __m512i both = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24,
                                         8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  return _mm512_permutexvar_epi16(order, both);
}

// 2^x for what is rounded to bf16 next: relative error 3e-6 (minimax on [-0.5, 0.5]); exactly 1 at
// 0, exactly 0 at -inf.
inline __m512 exp2(__m512 x) {
  const __m512 y = Vec::max(Vec::set(-200.0f), x);  // in this order NaN passes through
  const __m512 n = Vec::round(y);
  const __m512 r = Vec::sub(y, n);
  __m512 p = Vec::set(9.58285314e-3f);
  p = Vec::fma(p, r, Vec::set(5.59064267e-2f));
  p = Vec::fma(p, r, Vec::set(2.40240986e-1f));
  p = Vec::fma(p, r, Vec::set(6.93124193e-1f));
  p = Vec::fma(p, r, Vec::set(1.0f));
  return Vec::scale(p, n);
}

// How rows of k elements are packed: [row tiles][k tiles][16 pairs][columns] of bf16 pairs. Up to
// 16 rows make one tile with a column each; more make tiles of 16, the last padded with zeros.
struct PackedShape {
  int columns, row_tiles, k_tiles;
  PackedShape(int rows, int k)
      : columns(rows < kTileColumns ? rows : kTileColumns),
        row_tiles((rows + kTileColumns - 1) / kTileColumns),
        k_tiles((k + kTileK - 1) / kTileK) {}
  int row_bytes() const { return 4 * columns; }
  size_t tile_bytes() const { return size_t{kTileRows} * row_bytes(); }
  size_t row_tile_bytes() const { return tile_bytes() * k_tiles; }
  size_t bytes() const { return row_tile_bytes() * row_tiles; }
};

// Packs 16 rows (null: zeros) into one row tile.
inline void pack_row_tile(const Bf16* const* rows, int k, const PackedShape& shape, char* out) {
  const __mmask16 columns = static_cast<__mmask16>((1u << shape.columns) - 1);
  for (int kt = 0; kt < shape.k_tiles; ++kt) {
    const int left = k - kt * kTileK;
    const __mmask32 mask = left >= kTileK ? ~__mmask32{0} : (1u << left) - 1;
    __m512i r[16];
    for (int i = 0; i < 16; ++i) {
      r[i] =
          rows[i] ? _mm512_maskz_loadu_epi16(mask, rows[i] + kt * kTileK) : _mm512_setzero_si512();
    }
    transpose16(r);
    for (int i = 0; i < 16; ++i) {
      _mm512_mask_storeu_epi32(out, columns, r[i]);
      out += shape.row_bytes();
    }
  }
}

}  // namespace vamp::cpu::VAMP_ISA
