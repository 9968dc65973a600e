// Products x Wᵀ on AMX tiles, bf16 × bf16 → f32. Every output is summed over k in tiles of 32,
// ascending, by the tile unit: the same for one row as for many.
#pragma once

#include "kernels/cpu/amx_tile.h"
#include "kernels/cpu/lanes_matmul.h"

namespace vamp::cpu::VAMP_ISA {

inline size_t amx_packed_bytes(int rows, int k) {
  return PackedShape(rows, k).bytes();
}

inline void amx_pack(const Input& input, int first, int last, void* packed) {
  const PackedShape shape(input.rows, input.k);
  for (int tile = first; tile < last; ++tile) {
    const Bf16* rows[16] = {};
    for (int i = 0; i < 16 && tile * 16 + i < input.rows; ++i) {
      rows[i] = static_cast<const Bf16*>(input.source.data) + input.source.row(tile * 16 + i);
    }
    pack_row_tile(rows, input.k, shape, static_cast<char*>(packed) + tile * shape.row_tile_bytes());
  }
}

// 16 weight rows from row n on, at a k tile. Where the matrix ends inside the tile a copy filled up
// with zeros takes its place: bytes behind a row's end are another row's, or nobody's.
struct WeightTiles {
  const Bf16* weight;
  int n_end, k;
  alignas(64) Bf16 copy[2][kTileRows * kTileK];

  bool whole(int n) const { return n + kTileRows <= n_end && k % kTileK == 0; }
  const Bf16* at(int n, int kt) const { return weight + int64_t{n} * k + kt * kTileK; }
  const Bf16* padded(int n, int kt, int which) {
    const int left = k - kt * kTileK;
    const __mmask32 mask = left >= kTileK ? ~__mmask32{0} : (1u << left) - 1;
    for (int i = 0; i < kTileRows; ++i) {
      const __mmask32 row_mask = n + i < n_end ? mask : 0;
      _mm512_store_si512(copy[which] + i * kTileK,
                         _mm512_maskz_loadu_epi16(row_mask, at(n, kt) + int64_t{i} * k));
    }
    before_tile_loads();
    return copy[which];
  }
};

inline void prefetch_lines(const void* p, int lines) {
  for (int i = 0; i < lines; ++i) {
    _mm_prefetch(static_cast<const char*>(p) + i * 64, _MM_HINT_T0);
  }
}

// c[2 a + b] = 16 weight rows (of tile a) × 16 input rows (of row tile b), as [16 n][columns].
// The two weight tiles begin at rows na of `wa` and nb of `wb`.
template <int kRowTiles>
void tile_products(WeightTiles& wa, int na, WeightTiles& wb, int nb, const char* x,
                   const PackedShape& shape, bool prefetch, float (*c)[256]) {
  const int64_t stride = int64_t{2} * wa.k, x_stride = shape.row_bytes();
  const char* x1 = x + shape.row_tile_bytes();
  _tile_zero(0);
  _tile_zero(2);
  if constexpr (kRowTiles == 2) {
    _tile_zero(1);
    _tile_zero(3);
  }
  const bool whole = wa.whole(na) && wb.whole(nb);
  const Bf16* a = wa.at(na, 0);
  const Bf16* b = wb.at(nb, 0);
  const Bf16* next_a = a + int64_t{kTileRows} * (&wa == &wb ? 2 : 1) * wa.k;
  const Bf16* next_b = b + int64_t{kTileRows} * (&wa == &wb ? 2 : 1) * wa.k;
  for (int kt = 0; kt < shape.k_tiles; ++kt) {
    if (whole) {
      if (prefetch) {
        prefetch_lines(next_a + kt * 512, 16);
        prefetch_lines(next_b + kt * 512, 16);
      }
      _tile_loadd(4, a + kt * kTileK, stride);
      _tile_loadd(5, b + kt * kTileK, stride);
    } else {
      _tile_loadd(4, wa.padded(na, kt, 0), 64);
      _tile_loadd(5, wb.padded(nb, kt, 1), 64);
    }
    _tile_loadd(6, x + kt * shape.tile_bytes(), x_stride);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (kRowTiles == 2) {
      _tile_loadd(7, x1 + kt * shape.tile_bytes(), x_stride);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c[0], 64);
  _tile_stored(2, c[2], 64);
  if constexpr (kRowTiles == 2) {
    _tile_stored(1, c[1], 64);
    _tile_stored(3, c[3], 64);
  }
}

// c [16 n][columns] goes to rows [row, row + rows) and columns [n, n + columns) of the product.
inline void store_tile(const Product& product, const float* c, int row, int rows, int n,
                       int columns) {
  __m512i r[16];
  for (int i = 0; i < 16; ++i) r[i] = _mm512_load_si512(c + i * 16);
  transpose16(r);
  for (int i = 0; i < rows; ++i) {
    alignas(64) float line[16];
    _mm512_store_si512(line, r[i]);
    store_row<Bf16>(product, row + i, n, columns, line);
  }
}

inline void amx_multiply(const Input& input, const Product& product, int n_begin, int n_end) {
  const PackedShape shape(input.rows, input.k);
  const TileScope tiles(shape.columns);
  const char* x = static_cast<const char*>(input.packed);
  WeightTiles weight{static_cast<const Bf16*>(product.weight), n_end, input.k, {}};
  alignas(64) float c[4][256];
  for (int n = n_begin; n < n_end; n += 2 * kTileRows) {
    const bool ahead = n + 4 * kTileRows <= n_end;
    for (int t = 0; t < shape.row_tiles; t += 2) {
      const char* xt = x + t * shape.row_tile_bytes();
      const int row_tiles = shape.row_tiles - t < 2 ? 1 : 2;
      if (row_tiles == 2) {
        tile_products<2>(weight, n, weight, n + kTileRows, xt, shape, ahead && t == 0, c);
      } else {
        tile_products<1>(weight, n, weight, n + kTileRows, xt, shape, ahead && t == 0, c);
      }
      for (int i = 0; i < 2 * row_tiles; ++i) {
        const int a = i / row_tiles, b = i % row_tiles;
        const int row = (t + b) * 16, column = n + a * kTileRows;
        const int rows = input.rows - row < 16 ? input.rows - row : 16;
        const int columns = n_end - column < 16 ? n_end - column : 16;
        if (columns > 0) store_tile(product, c[2 * a + b], row, rows, column, columns);
      }
    }
  }
}

// silu(gate) · up, to well under bf16's precision: one Newton step on a 14-bit reciprocal.
inline __m512 gated(const float* gate, const float* up) {
  const __m512 g = Vec::load(gate);
  const __m512 exponent = Vec::min(Vec::set(126.0f), Vec::mul(g, Vec::set(-1.44269504f)));
  const __m512 d = Vec::add(Vec::set(1.0f), exp2(exponent));
  const __m512 y = _mm512_rcp14_ps(d);
  const __m512 reciprocal = Vec::mul(y, Vec::sub(Vec::set(2.0f), Vec::mul(d, y)));
  return Vec::mul(Vec::mul(g, reciprocal), Vec::load(up));
}

// silu(gate) · up of 16 columns n, which are 8 rows of pairs in k tile n / 32 of the next product.
inline void store_gated(const float* gate, const float* up, const PackedShape& shape, int n,
                        int n_end, char* row_tile) {
  const __mmask16 columns = static_cast<__mmask16>((1u << shape.columns) - 1);
  char* out = row_tile + n / kTileK * shape.tile_bytes() + n % kTileK / 2 * shape.row_bytes();
  for (int i = 0; i < 16; i += 2) {
    const __m512i pairs =
        pair_rows(gated(gate + i * 16, up + i * 16), gated(gate + i * 16 + 16, up + i * 16 + 16));
    _mm512_mask_storeu_epi32(out, columns, pairs);
    out += shape.row_bytes();
  }
  if (n + kTileRows >= n_end && n % kTileK == 0) {  // the k tile's other half
    for (int i = 0; i < 8; ++i) {
      _mm512_mask_storeu_epi32(out, columns, _mm512_setzero_si512());
      out += shape.row_bytes();
    }
  }
}

inline void amx_gate_up(const Input& input, const void* gate, const void* up, int n, int n_begin,
                        int n_end, void* h) {
  const PackedShape shape(input.rows, input.k), h_shape(input.rows, n);
  const TileScope tiles(shape.columns);
  const char* x = static_cast<const char*>(input.packed);
  WeightTiles g{static_cast<const Bf16*>(gate), n_end, input.k, {}};
  WeightTiles u{static_cast<const Bf16*>(up), n_end, input.k, {}};
  alignas(64) float c[4][256];
  for (int i = n_begin; i < n_end; i += kTileRows) {
    const bool ahead = i + 2 * kTileRows <= n_end;
    for (int t = 0; t < shape.row_tiles; t += 2) {
      const char* xt = x + t * shape.row_tile_bytes();
      char* ht = static_cast<char*>(h) + t * h_shape.row_tile_bytes();
      if (shape.row_tiles - t >= 2) {
        tile_products<2>(g, i, u, i, xt, shape, ahead && t == 0, c);
        store_gated(c[0], c[2], h_shape, i, n, ht);
        store_gated(c[1], c[3], h_shape, i, n, ht + h_shape.row_tile_bytes());
      } else {
        tile_products<1>(g, i, u, i, xt, shape, ahead && t == 0, c);
        store_gated(c[0], c[2], h_shape, i, n, ht);
      }
    }
  }
}

}  // namespace vamp::cpu::VAMP_ISA
