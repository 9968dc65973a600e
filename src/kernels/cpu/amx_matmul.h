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

// Asks for the weights of the next panel, evenly over the work on this one.
struct Prefetcher {
  const char *a = nullptr, *b = nullptr;
  int lines = 0;  // of each, a step

  void step() {
    for (int i = 0; i < lines; ++i) {
      _mm_prefetch(a + i * 64, _MM_HINT_T0);
      _mm_prefetch(b + i * 64, _MM_HINT_T0);
    }
    a += lines * 64;
    b += lines * 64;
  }
};

// c[2 a + b] = 16 weight rows (of tile a) × 16 input rows (of row tile b), as [16 n][columns].
// The two weight tiles begin at rows na of `wa` and nb of `wb`. Between tile products, which leave
// the vector units idle, `pending` stores the results of the block before.
//
// The panel of weights is to stay in the first-level cache while many row tiles pass: they are then
// loaded with the streaming hint (kStream).
template <int kRowTiles, bool kStream, class Pending>
void tile_products(WeightTiles& wa, int na, WeightTiles& wb, int nb, const char* x,
                   const PackedShape& shape, Prefetcher& prefetch, Pending& pending,
                   float (*c)[256]) {
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
  for (int kt = 0; kt < shape.k_tiles; ++kt) {
    if (whole) {
      prefetch.step();
      _tile_loadd(4, a + kt * kTileK, stride);
      _tile_loadd(5, b + kt * kTileK, stride);
    } else {
      _tile_loadd(4, wa.padded(na, kt, 0), 64);
      _tile_loadd(5, wb.padded(nb, kt, 1), 64);
    }
    if constexpr (kStream) {
      _tile_stream_loadd(6, x + kt * shape.tile_bytes(), x_stride);
    } else {
      _tile_loadd(6, x + kt * shape.tile_bytes(), x_stride);
    }
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(2, 5, 6);
    if constexpr (kRowTiles == 2) {
      if constexpr (kStream) {
        _tile_stream_loadd(7, x1 + kt * shape.tile_bytes(), x_stride);
      } else {
        _tile_loadd(7, x1 + kt * shape.tile_bytes(), x_stride);
      }
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
    pending.step();
  }
  pending.finish();
  _tile_stored(0, c[0], 64);
  _tile_stored(2, c[2], 64);
  if constexpr (kRowTiles == 2) {
    _tile_stored(1, c[1], 64);
    _tile_stored(3, c[3], 64);
  }
}

// Results of a block of products, c as tile_products() leaves it, on their way to the output rows.
class ProductStore {
 public:
  ProductStore(const Product& product, int rows, int n_end)
      : product_(product), rows_(rows), n_end_(n_end) {}

  void begin(const float (*c)[256], int row_tiles, int row_tile, int n) {
    c_ = c;
    row_tiles_ = row_tiles;
    row_tile_ = row_tile;
    n_ = n;
    next_ = 0;
    units_ = 2 * row_tiles;
  }
  void step() {
    if (next_ < units_) store(next_++);
  }
  void finish() {
    while (next_ < units_) store(next_++);
  }

 private:
  void store(int unit) const {
    const int a = unit / row_tiles_, b = unit % row_tiles_;
    const int first = (row_tile_ + b) * 16, column = n_ + a * kTileRows;
    const int rows = rows_ - first < 16 ? rows_ - first : 16;
    if (column >= n_end_) return;
    const __mmask16 columns = Vec::mask(n_end_ - column);
    __m512i r[16];
    for (int i = 0; i < 16; ++i) r[i] = _mm512_load_si512(c_[2 * a + b] + i * 16);
    transpose16(r);
    if (product_.bias) {
      const __m512 bias = _mm512_maskz_loadu_ps(columns, product_.bias + column);
      for (int i = 0; i < 16; ++i) {
        r[i] = _mm512_castps_si512(Vec::add(_mm512_castsi512_ps(r[i]), bias));
      }
    }
    for (int i = 0; i < rows; ++i) {
      const int row = product_.out_index ? product_.out_index[first + i] : first + i;
      const int64_t offset = row * product_.out_stride + column;
      const __m512 v = _mm512_castsi512_ps(r[i]);
      if (product_.kind == Product::Out::kActivation) {
        _mm256_mask_storeu_epi16(static_cast<Bf16*>(product_.out) + offset, columns,
                                 Vec::narrow(v));
        continue;
      }
      float* out = static_cast<float*>(product_.out) + offset;
      const bool add = product_.kind == Product::Out::kAddFloat;
      _mm512_mask_storeu_ps(out, columns,
                            add ? Vec::add(_mm512_maskz_loadu_ps(columns, out), v) : v);
    }
  }

  const Product& product_;
  int rows_, n_end_;
  const float (*c_)[256] = nullptr;
  int row_tiles_ = 0, row_tile_ = 0, n_ = 0, next_ = 0, units_ = 0;
};

// silu(gate) · up, to well under bf16's precision: one Newton step on a 14-bit reciprocal. Columns
// beyond `columns` hold nothing that may be computed with: they count as zeros.
inline __m512 gated(const float* gate, const float* up, __mmask16 columns) {
  const __m512 g = _mm512_maskz_loadu_ps(columns, gate);
  const __m512 exponent = Vec::min(Vec::set(126.0f), Vec::mul(g, Vec::set(-1.44269504f)));
  const __m512 d = Vec::add(Vec::set(1.0f), exp2(exponent));
  const __m512 y = _mm512_rcp14_ps(d);
  const __m512 reciprocal = Vec::mul(y, Vec::sub(Vec::set(2.0f), Vec::mul(d, y)));
  return Vec::mul(Vec::mul(g, reciprocal), _mm512_maskz_loadu_ps(columns, up));
}

// silu(gate) · up of 16 columns n, which become 8 rows of pairs in k tile n / 32 of the next
// product.
class GatedStore {
 public:
  GatedStore(const PackedShape& shape, int n_total)
      : shape_(shape), n_total_(n_total), columns_(Vec::mask(shape.columns)) {}

  void begin(const float (*c)[256], int row_tiles, int n, char* row_tile) {
    c_ = c;
    out_ = row_tile + n / kTileK * shape_.tile_bytes() + n % kTileK / 2 * shape_.row_bytes();
    next_ = 0;
    units_ = 8 * row_tiles;
    if (n + kTileRows < n_total_ || n % kTileK != 0) return;
    for (int b = 0; b < row_tiles; ++b) {  // the last k tile's other half
      char* rest = out_ + b * shape_.row_tile_bytes() + 8 * shape_.row_bytes();
      for (int i = 0; i < 8; ++i) {
        _mm512_mask_storeu_epi32(rest + i * shape_.row_bytes(), columns_, _mm512_setzero_si512());
      }
    }
  }
  void step() {
    if (next_ < units_) store(next_++);
  }
  void finish() {
    while (next_ < units_) store(next_++);
  }

 private:
  void store(int unit) const {
    const int b = unit / 8, i = unit % 8;
    const float* gate = c_[b] + 32 * i;
    const float* up = c_[2 + b] + 32 * i;
    const __m512i pairs = pair_rows(gated(gate, up, columns_), gated(gate + 16, up + 16, columns_));
    _mm512_mask_storeu_epi32(out_ + b * shape_.row_tile_bytes() + i * shape_.row_bytes(), columns_,
                             pairs);
  }

  PackedShape shape_;
  int n_total_;
  __mmask16 columns_;
  const float (*c_)[256] = nullptr;
  char* out_ = nullptr;
  int next_ = 0, units_ = 0;
};

// Runs the row tiles past one panel of weights; begin(c, row_tiles, t) hands a block's results on.
template <class Pending, class Begin>
void panel_products(WeightTiles& wa, int na, WeightTiles& wb, int nb, const char* x,
                    const PackedShape& shape, Prefetcher prefetch, Pending& pending, int* buffer,
                    float (*c)[4][256], const Begin& begin) {
  for (int t = 0; t < shape.row_tiles; t += 2) {
    const char* xt = x + t * shape.row_tile_bytes();
    float(*block)[256] = c[*buffer ^= 1];
    const int row_tiles = shape.row_tiles - t < 2 ? 1 : 2;
    if (row_tiles == 1) {
      tile_products<1, false>(wa, na, wb, nb, xt, shape, prefetch, pending, block);
    } else if (shape.row_tiles > 2) {
      tile_products<2, true>(wa, na, wb, nb, xt, shape, prefetch, pending, block);
    } else {
      tile_products<2, false>(wa, na, wb, nb, xt, shape, prefetch, pending, block);
    }
    begin(block, row_tiles, t);
  }
}

// Steps of a panel: k tiles times pairs of row tiles. 16 lines of each weight tile per k tile.
inline int prefetch_lines(const PackedShape& shape) {
  const int blocks = (shape.row_tiles + 1) / 2;
  return (kTileRows + blocks - 1) / blocks;
}

inline void amx_multiply(const Input& input, const Product& product, int n_begin, int n_end) {
  const PackedShape shape(input.rows, input.k);
  const TileScope tiles(shape.columns);
  WeightTiles weight{static_cast<const Bf16*>(product.weight), n_end, input.k, {}};
  ProductStore store(product, input.rows, n_end);
  alignas(64) float c[2][4][256];
  int buffer = 0;
  for (int n = n_begin; n < n_end; n += 2 * kTileRows) {
    Prefetcher prefetch;
    if (n + 4 * kTileRows <= n_end) {
      prefetch = {reinterpret_cast<const char*>(weight.at(n + 2 * kTileRows, 0)),
                  reinterpret_cast<const char*>(weight.at(n + 3 * kTileRows, 0)),
                  prefetch_lines(shape)};
    }
    panel_products(weight, n, weight, n + kTileRows, static_cast<const char*>(input.packed), shape,
                   prefetch, store, &buffer, c,
                   [&](const float(*block)[256], int row_tiles, int t) {
                     store.begin(block, row_tiles, t, n);
                   });
  }
  store.finish();
}

inline void amx_gate_up(const Input& input, const void* gate, const void* up, int n_total,
                        int n_begin, int n_end, void* h) {
  const PackedShape shape(input.rows, input.k), h_shape(input.rows, n_total);
  const TileScope tiles(shape.columns);
  WeightTiles g{static_cast<const Bf16*>(gate), n_end, input.k, {}};
  WeightTiles u{static_cast<const Bf16*>(up), n_end, input.k, {}};
  GatedStore store(h_shape, n_total);
  alignas(64) float c[2][4][256];
  int buffer = 0;
  for (int n = n_begin; n < n_end; n += kTileRows) {
    Prefetcher prefetch;
    if (n + 2 * kTileRows <= n_end) {
      prefetch = {reinterpret_cast<const char*>(g.at(n + kTileRows, 0)),
                  reinterpret_cast<const char*>(u.at(n + kTileRows, 0)), prefetch_lines(shape)};
    }
    panel_products(g, n, u, n, static_cast<const char*>(input.packed), shape, prefetch, store,
                   &buffer, c, [&](const float(*block)[256], int row_tiles, int t) {
                     store.begin(block, row_tiles, n,
                                 static_cast<char*>(h) + t * h_shape.row_tile_bytes());
                   });
  }
  store.finish();
}

}  // namespace vamp::cpu::VAMP_ISA
