// Attention over a paged context with an online softmax. The context is taken in tiles of kKeyTile
// positions that begin at multiples of kKeyTile, in ascending order, and a query stops at its own
// position: what a query computes depends on its context alone, not on the queries beside it.
#pragma once

#include "kernels/cpu/lanes_rows.h"

namespace vamp::cpu::VAMP_ISA {

inline constexpr int kKeyTile = 64;
inline constexpr float kLog2e = 1.44269504088896341f;

struct AttentionScratch {
  float *q, *out, *max, *sum;  // [rows, head_dim] twice, [rows] twice
  float *keys, *values;        // [kKeyTile, head_dim]

  static size_t bytes(int rows, int head_dim) {
    return sizeof(float) *
           (size_t{2} * rows * head_dim + size_t{2} * rows + size_t{2} * kKeyTile * head_dim);
  }
  AttentionScratch(void* memory, int rows, int head_dim) {
    q = static_cast<float*>(memory);
    out = q + int64_t{rows} * head_dim;
    keys = out + int64_t{rows} * head_dim;
    values = keys + int64_t{kKeyTile} * head_dim;
    max = values + int64_t{kKeyTile} * head_dim;
    sum = max + rows;
  }
};

// Keys and values of positions [begin, begin + count), as f32.
template <class T>
void load_tile(const AttentionTask& t, int begin, int count, const AttentionScratch& s) {
  const int d = t.head_dim;
  for (int i = 0; i < count;) {
    const int position = begin + i, in_block = position % t.block_tokens;
    const int run = t.block_tokens - in_block < count - i ? t.block_tokens - in_block : count - i;
    const T* k = static_cast<const T*>(t.arena) +
                 t.blocks[position / t.block_tokens] * t.block_stride + int64_t{in_block} * d;
    convert(k, int64_t{run} * d, s.keys + int64_t{i} * d);
    convert(k + t.v_offset, int64_t{run} * d, s.values + int64_t{i} * d);
    i += run;
  }
}

// One row's softmax step over `valid` scores: p = exp(scores - max), old sums scaled by `alpha`.
inline float softmax_step(float* scores, int valid, float scale, float* max, float* sum) {
  const float infinity = __builtin_inff();
  for (int i = valid; i < kKeyTile; ++i) scores[i] = -infinity;
  Vec::F highest = Vec::set(*max);
  for (int i = 0; i < kKeyTile; i += Vec::kWidth) {
    const Vec::F v = Vec::mul(Vec::load(scores + i), Vec::set(scale));
    Vec::store(scores + i, v);
    highest = Vec::max(highest, v);
  }
  const float new_max = Vec::max_lane(highest);
  Vec::F total = Vec::zero();
  for (int i = 0; i < kKeyTile; i += Vec::kWidth) {
    const Vec::F p = Vec::exp(Vec::sub(Vec::load(scores + i), Vec::set(new_max)));
    Vec::store(scores + i, p);
    total = Vec::add(total, p);
  }
  float alpha;
  {
    float lanes[Vec::kWidth];
    Vec::store(lanes, Vec::exp(Vec::set(*max - new_max)));
    alpha = lanes[0];
  }
  *sum = *sum * alpha + Vec::sum(total);
  *max = new_max;
  return alpha;
}

// out = out · alpha + Σ p[i] · values[i], i ascending.
template <int kVectors>
void add_values(const float* p, int valid, float alpha, const float* values, int d, float* out) {
  Vec::F acc[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    acc[v] = Vec::mul(Vec::load(out + v * Vec::kWidth), Vec::set(alpha));
  }
  for (int i = 0; i < valid; ++i) {
    const Vec::F weight = Vec::set(p[i]);
    for (int v = 0; v < kVectors; ++v) {
      acc[v] = Vec::fma(weight, Vec::load(values + int64_t{i} * d + v * Vec::kWidth), acc[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) Vec::store(out + v * Vec::kWidth, acc[v]);
}

inline void add_values_row(const float* p, int valid, float alpha, const float* values, int d,
                           float* out) {
  int c = 0;
  for (; c + 4 * Vec::kWidth <= d; c += 4 * Vec::kWidth) {
    add_values<4>(p, valid, alpha, values + c, d, out + c);
  }
  for (; c + Vec::kWidth <= d; c += Vec::kWidth) {
    add_values<1>(p, valid, alpha, values + c, d, out + c);
  }
  for (; c < d; ++c) {
    float acc = out[c] * alpha;
    for (int i = 0; i < valid; ++i) acc += p[i] * values[int64_t{i} * d + c];
    out[c] = acc;
  }
}

template <class A>
void attention(const AttentionTask& t, void* scratch) {
  const int d = t.head_dim, rows = t.tokens * t.group;
  const AttentionScratch s(scratch, rows, d);
  for (int r = 0; r < rows; ++r) {
    const A* q = static_cast<const A*>(t.q) + r / t.group * t.q_stride + int64_t{r % t.group} * d;
    convert(q, d, s.q + int64_t{r} * d);
    s.max[r] = -__builtin_inff();
    s.sum[r] = 0;
    for (int i = 0; i < d; ++i) s.out[int64_t{r} * d + i] = 0;
  }
  const int context = t.first_position + t.tokens;
  for (int begin = 0; begin < context; begin += kKeyTile) {
    const int count = context - begin < kKeyTile ? context - begin : kKeyTile;
    if (t.kv_type == Element::kBf16) {
      load_tile<Bf16>(t, begin, count, s);
    } else {
      load_tile<float>(t, begin, count, s);
    }
    const int skip = begin > t.first_position ? begin - t.first_position : 0;  // see none of it
    for (int r = skip * t.group; r < rows; r += 4) {
      const int n = rows - r < 4 ? rows - r : 4;
      const float* q[4];
      for (int i = 0; i < n; ++i) q[i] = s.q + int64_t{r + i} * d;
      float scores[4][kKeyTile];
      for (int key = 0; key < count; key += kBlock) {
        float c[4][kBlock];
        const int columns = count - key < kBlock ? count - key : kBlock;
        dot_rows(q, n, s.keys + int64_t{key} * d, d, d, columns, 0, c);
        for (int i = 0; i < n; ++i) {
          for (int j = 0; j < kBlock; ++j) scores[i][key + j] = c[i][j];
        }
      }
      for (int i = 0; i < n; ++i) {
        const int seen = t.first_position + (r + i) / t.group + 1 - begin;
        const int valid = seen < kKeyTile ? seen : kKeyTile;
        const float alpha = softmax_step(scores[i], valid, t.scale, s.max + r + i, s.sum + r + i);
        add_values_row(scores[i], valid, alpha, s.values, d, s.out + int64_t{r + i} * d);
      }
    }
  }
  for (int r = 0; r < rows; ++r) {
    A* out = static_cast<A*>(t.out) + r / t.group * t.out_stride + int64_t{r % t.group} * d;
    float* o = s.out + int64_t{r} * d;
    for (int i = 0; i < d; ++i) o[i] /= s.sum[r];
    convert(o, d, out);
  }
}

}  // namespace vamp::cpu::VAMP_ISA
