// Attention on AMX tiles, bf16. As lanes_attention.h: tiles of kKeyTile positions in ascending
// order. Scores are keys × queries, so a tile has one query per column and the softmax runs down
// the rows without crossing lanes; the probabilities come out as the B tile of the second product,
// whose A is the tile's values transposed.
#pragma once

#include "kernels/cpu/amx_tile.h"
#include "kernels/cpu/lanes_attention.h"

namespace vamp::cpu::VAMP_ISA {

class AmxAttention {
 public:
  static size_t bytes(int rows, int head_dim) {
    const Shape s(rows, head_dim);
    return s.q_bytes() + s.out_bytes() + s.key_bytes() + s.value_bytes() + s.state_bytes() + 64;
  }

  AmxAttention(const AttentionTask& task, void* scratch)
      : t_(task), s_(task.tokens * task.group, task.head_dim) {
    char* p = reinterpret_cast<char*>((reinterpret_cast<uintptr_t>(scratch) + 63) & ~uintptr_t{63});
    q_ = p;
    keys_ = reinterpret_cast<Bf16*>(p += s_.q_bytes());
    values_ = reinterpret_cast<Bf16*>(p += s_.key_bytes());
    out_ = reinterpret_cast<float*>(p += s_.value_bytes());
    state_ = reinterpret_cast<float*>(p + s_.out_bytes());
  }

  void run() {
    const TileScope tiles(kTileColumns);
    begin_rows();
    const int context = t_.first_position + t_.tokens;
    for (int begin = 0; begin < context; begin += kKeyTile) {
      load_keys_and_values(begin, context - begin < kKeyTile ? context - begin : kKeyTile);
      const int skip = begin > t_.first_position ? begin - t_.first_position : 0;
      // The next tile's scores are on their way through the tile unit during this one's softmax.
      alignas(64) float scores[2][kKeyTile * 16];
      int ct = skip * t_.group / 16;
      multiply_keys(ct, scores[ct % 2]);
      for (; ct < s_.column_tiles; ++ct) {
        if (ct + 1 < s_.column_tiles) multiply_keys(ct + 1, scores[(ct + 1) % 2]);
        column_tile(ct, begin, scores[ct % 2]);
      }
    }
    for (int ct = 0; ct < s_.column_tiles; ++ct) store_column_tile(ct);
  }

 private:
  struct Shape {
    int rows, column_tiles, head_dim, k_tiles, d_tiles;
    Shape(int query_rows, int dim)
        : rows(query_rows),
          column_tiles((query_rows + 15) / 16),
          head_dim(dim),
          k_tiles((dim + 31) / 32),
          d_tiles((dim + 15) / 16) {}
    size_t q_bytes() const { return size_t{1024} * k_tiles * column_tiles; }
    size_t key_bytes() const { return size_t{2} * kKeyTile * 32 * k_tiles; }
    size_t value_bytes() const { return size_t{2} * kKeyTile * 16 * d_tiles; }
    size_t out_bytes() const { return size_t{1024} * d_tiles * column_tiles; }
    size_t state_bytes() const { return size_t{128} * column_tiles; }
  };

  float* out_tile(int ct, int dt) const { return out_ + (int64_t{ct} * s_.d_tiles + dt) * 256; }
  float* max_of(int ct) const { return state_ + ct * 32; }
  float* sum_of(int ct) const { return state_ + ct * 32 + 16; }

  void begin_rows() {
    const PackedShape shape(16, s_.head_dim);
    for (int ct = 0; ct < s_.column_tiles; ++ct) {
      const Bf16* rows[16] = {};
      for (int i = 0; i < 16 && ct * 16 + i < s_.rows; ++i) {
        const int r = ct * 16 + i;
        rows[i] = static_cast<const Bf16*>(t_.q) + r / t_.group * t_.q_stride +
                  int64_t{r % t_.group} * s_.head_dim;
      }
      pack_row_tile(rows, s_.head_dim, shape, q_ + ct * shape.row_tile_bytes());
      Vec::store(max_of(ct), Vec::set(-__builtin_inff()));
      Vec::store(sum_of(ct), Vec::zero());
      for (int i = 0; i < s_.d_tiles * 16; ++i) Vec::store(out_tile(ct, 0) + i * 16, Vec::zero());
    }
  }

  // Where the keys of positions [begin, begin + count) are.
  template <class T>
  void find_rows(int begin, int count, const T** rows) const {
    int block = begin / t_.block_tokens, in_block = begin % t_.block_tokens;
    for (int i = 0; i < count; ++block, in_block = 0) {
      const T* key = static_cast<const T*>(t_.arena) + t_.blocks[block] * t_.block_stride +
                     int64_t{in_block} * s_.head_dim;
      for (; in_block < t_.block_tokens && i < count; ++in_block, ++i) {
        rows[i] = key;
        key += s_.head_dim;
      }
    }
  }

  static __m512i load_row(const Bf16* p, __mmask32 mask) {
    return _mm512_maskz_loadu_epi16(mask, p);
  }
  static __m512i load_row(const float* p, __mmask32 mask) {
    const __m512 low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask), p);
    const __m512 high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(mask >> 16), p + 16);
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low));
  }

  // keys_ [kKeyTile][head_dim], values_ [k tile of 32 positions][head_dim][32]; zeros behind
  // `count`.
  void load_keys_and_values(int begin, int count) {
    if (t_.kv_type == Element::kBf16) {
      load_tiles<Bf16>(begin, count);
    } else {
      load_tiles<float>(begin, count);
    }
    before_tile_loads();
  }

  template <class T>
  void load_tiles(int begin, int count) {
    const T* rows[kKeyTile];
    find_rows(begin, count, rows);
    for (int kt = 0; kt < s_.k_tiles; ++kt) {
      const int left = s_.head_dim - kt * 32;
      const __mmask32 mask = left >= 32 ? ~__mmask32{0} : (1u << left) - 1;
      for (int i = 0; i < kKeyTile; ++i) {
        const __m512i key = i < count ? load_row(rows[i] + kt * 32, mask) : _mm512_setzero_si512();
        _mm512_store_si512(keys_ + (int64_t{i} * s_.k_tiles + kt) * 32, key);
      }
      for (int half = 0; half < kKeyTile / 32; ++half) {
        transpose_values(rows + half * 32, count - half * 32, kt, mask, half);
      }
    }
  }

  template <class T>
  void transpose_values(const T* const* rows, int count, int kt, __mmask32 mask, int half) {
    __m512i low[16], high[16];  // 16 pairs of positions, of dimensions kt * 32 + [0,16) and [16,32)
    for (int i = 0; i < 16; ++i) {
      const __m512i zero = _mm512_setzero_si512();
      const __m512i a = 2 * i < count ? load_row(rows[2 * i] + t_.v_offset + kt * 32, mask) : zero;
      const __m512i b =
          2 * i + 1 < count ? load_row(rows[2 * i + 1] + t_.v_offset + kt * 32, mask) : zero;
      low[i] =
          _mm512_or_si512(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(a)),
                          _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(b)), 16));
      high[i] = _mm512_or_si512(
          _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(a, 1)),
          _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(b, 1)), 16));
    }
    transpose16(low);
    store_values(low, 2 * kt, half);
    if (2 * kt + 1 < s_.d_tiles) {
      transpose16(high);
      store_values(high, 2 * kt + 1, half);
    }
  }

  void store_values(const __m512i* tile, int dt, int half) {
    Bf16* out = values_ + (int64_t{half} * s_.d_tiles + dt) * 512;
    for (int i = 0; i < 16; ++i) _mm512_store_si512(out + i * 32, tile[i]);
  }

  void column_tile(int ct, int begin, float* scores) {
    alignas(64) char p[2 * 1024];
    mask_scores(ct, begin, scores);
    const __m512 alpha = softmax(ct, scores, p);
    if (_mm512_cmp_ps_mask(alpha, Vec::set(1.0f), _CMP_NEQ_UQ)) {
      float* out = out_tile(ct, 0);
      for (int i = 0; i < s_.d_tiles * 16; ++i) {
        Vec::store(out + i * 16, Vec::mul(Vec::load(out + i * 16), alpha));
      }
    }
    before_tile_loads();
    _tile_loadd(6, p, 64);
    _tile_loadd(7, p + 1024, 64);
    int dt = 0;
    for (; dt + 2 <= s_.d_tiles; dt += 2) add_values(ct, dt);
    if (dt < s_.d_tiles) {
      _tile_loadd(0, out_tile(ct, dt), 64);
      _tile_loadd(4, value_tile(0, dt), 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, value_tile(1, dt), 64);
      _tile_dpbf16ps(0, 5, 7);
      _tile_stored(0, out_tile(ct, dt), 64);
    }
  }

  const Bf16* value_tile(int half, int dt) const {
    return values_ + (int64_t{half} * s_.d_tiles + dt) * 512;
  }

  // Two tiles of dimensions; tiles 6 and 7 hold the probabilities. Accumulators alternate so that
  // the next call need not wait for this one.
  void add_values(int ct, int dt) {
    if (dt % 4 == 0) {
      _tile_loadd(0, out_tile(ct, dt), 64);
      _tile_loadd(1, out_tile(ct, dt + 1), 64);
      _tile_loadd(4, value_tile(0, dt), 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, value_tile(0, dt + 1), 64);
      _tile_dpbf16ps(1, 5, 6);
      _tile_loadd(4, value_tile(1, dt), 64);
      _tile_dpbf16ps(0, 4, 7);
      _tile_loadd(5, value_tile(1, dt + 1), 64);
      _tile_dpbf16ps(1, 5, 7);
      _tile_stored(0, out_tile(ct, dt), 64);
      _tile_stored(1, out_tile(ct, dt + 1), 64);
    } else {
      _tile_loadd(2, out_tile(ct, dt), 64);
      _tile_loadd(3, out_tile(ct, dt + 1), 64);
      _tile_loadd(4, value_tile(0, dt), 64);
      _tile_dpbf16ps(2, 4, 6);
      _tile_loadd(5, value_tile(0, dt + 1), 64);
      _tile_dpbf16ps(3, 5, 6);
      _tile_loadd(4, value_tile(1, dt), 64);
      _tile_dpbf16ps(2, 4, 7);
      _tile_loadd(5, value_tile(1, dt + 1), 64);
      _tile_dpbf16ps(3, 5, 7);
      _tile_stored(2, out_tile(ct, dt), 64);
      _tile_stored(3, out_tile(ct, dt + 1), 64);
    }
  }

  void multiply_keys(int ct, float* scores) const {
    const char* q = q_ + size_t{1024} * s_.k_tiles * ct;
    const int stride = 64 * s_.k_tiles;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int kt = 0; kt < s_.k_tiles; ++kt) {
      const char* keys = reinterpret_cast<const char*>(keys_) + kt * 64;
      _tile_loadd(6, q + kt * 1024, 64);
      _tile_loadd(4, keys, stride);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, keys + 16 * stride, stride);
      _tile_dpbf16ps(1, 5, 6);
      _tile_loadd(4, keys + 32 * stride, stride);
      _tile_dpbf16ps(2, 4, 6);
      _tile_loadd(5, keys + 48 * stride, stride);
      _tile_dpbf16ps(3, 5, 6);
    }
    _tile_stored(0, scores, 64);
    _tile_stored(1, scores + 256, 64);
    _tile_stored(2, scores + 512, 64);
    _tile_stored(3, scores + 768, 64);
  }

  // Scores of positions that a query does not see become -inf.
  void mask_scores(int ct, int begin, float* scores) const {
    if (begin + kKeyTile <= t_.first_position + ct * 16 / t_.group + 1) return;  // all are seen
    alignas(64) int32_t seen[16];  // positions of this tile that each query sees
    int least = kKeyTile;
    for (int i = 0; i < 16; ++i) {
      const int r = ct * 16 + i < s_.rows ? ct * 16 + i : s_.rows - 1;
      seen[i] = t_.first_position + r / t_.group + 1 - begin;
      if (seen[i] < least) least = seen[i];
    }
    const __m512i seen_v = _mm512_load_si512(seen);
    for (int i = least < 0 ? 0 : least; i < kKeyTile; ++i) {
      const __mmask16 hidden = _mm512_cmple_epi32_mask(seen_v, _mm512_set1_epi32(i));
      _mm512_mask_store_ps(scores + i * 16, hidden, Vec::set(-__builtin_inff()));
    }
  }

  // Columns are queries. Returns what older sums must be scaled by; writes the probabilities as
  // two B tiles.
  __m512 softmax(int ct, const float* scores, char* p) const {
    const __m512 scale = Vec::set(t_.scale * kLog2e);
    __m512 h0 = Vec::load(scores), h1 = Vec::load(scores + 16);
    __m512 h2 = Vec::load(scores + 32), h3 = Vec::load(scores + 48);
    for (int i = 4; i < kKeyTile; i += 4) {
      h0 = Vec::max(h0, Vec::load(scores + i * 16));
      h1 = Vec::max(h1, Vec::load(scores + i * 16 + 16));
      h2 = Vec::max(h2, Vec::load(scores + i * 16 + 32));
      h3 = Vec::max(h3, Vec::load(scores + i * 16 + 48));
    }
    const __m512 highest = Vec::max(Vec::max(h0, h1), Vec::max(h2, h3));
    const __m512 old_max = Vec::load(max_of(ct));
    const __m512 max = Vec::max(old_max, Vec::mul(highest, scale));
    const __m512 minus_max = Vec::sub(Vec::zero(), max);
    __m512 s0 = Vec::zero(), s1 = Vec::zero(), s2 = Vec::zero(), s3 = Vec::zero();
    for (int i = 0; i < kKeyTile; i += 4) {
      const float* row = scores + i * 16;
      const __m512 p0 = exp2(Vec::fma(Vec::load(row), scale, minus_max));
      const __m512 p1 = exp2(Vec::fma(Vec::load(row + 16), scale, minus_max));
      const __m512 p2 = exp2(Vec::fma(Vec::load(row + 32), scale, minus_max));
      const __m512 p3 = exp2(Vec::fma(Vec::load(row + 48), scale, minus_max));
      s0 = Vec::add(s0, p0);
      s1 = Vec::add(s1, p1);
      s2 = Vec::add(s2, p2);
      s3 = Vec::add(s3, p3);
      _mm512_store_si512(p + i * 32, pair_rows(p0, p1));
      _mm512_store_si512(p + i * 32 + 64, pair_rows(p2, p3));
    }
    const __m512 alpha = exp2(Vec::sub(old_max, max));
    const __m512 sum = Vec::add(Vec::add(s0, s1), Vec::add(s2, s3));
    Vec::store(sum_of(ct), Vec::fma(Vec::load(sum_of(ct)), alpha, sum));
    Vec::store(max_of(ct), max);
    return alpha;
  }

  void store_column_tile(int ct) const {
    const __m512 sum = Vec::load(sum_of(ct));
    for (int dt = 0; dt < s_.d_tiles; ++dt) {
      __m512i r[16];
      for (int i = 0; i < 16; ++i) {
        r[i] = _mm512_castps_si512(Vec::div(Vec::load(out_tile(ct, dt) + i * 16), sum));
      }
      transpose16(r);
      const int left = s_.head_dim - dt * 16;
      for (int i = 0; i < 16 && ct * 16 + i < s_.rows; ++i) {
        const int row = ct * 16 + i;
        Bf16* out = static_cast<Bf16*>(t_.out) + row / t_.group * t_.out_stride +
                    int64_t{row % t_.group} * s_.head_dim + dt * 16;
        Vec::store(out, _mm512_castsi512_ps(r[i]), left);
      }
    }
  }

  AttentionTask t_;
  Shape s_;
  char* q_;
  Bf16 *keys_, *values_;
  float *out_, *state_;
};

inline void amx_attention(const AttentionTask& task, void* scratch) {
  AmxAttention(task, scratch).run();
}

}  // namespace vamp::cpu::VAMP_ISA
