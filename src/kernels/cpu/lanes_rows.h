// Operations on one row: norms, rotary embedding, activation, conversion, weighted sum of experts.
#pragma once

#include "kernels/cpu/lanes_matmul.h"

namespace vamp::cpu::VAMP_ISA {

// out = x / sqrt(mean(x²) + eps) · w. T is f32 or the activation type; out may be x.
template <class T, class A>
void norm_row(const T* x, int cols, const NormArgs& norm, A* out) {
  Vec::F squares = Vec::zero();
  for (int i = 0; i < cols; i += Vec::kWidth) {
    const Vec::F v = Vec::load(x + i, cols - i);
    squares = Vec::fma(v, v, squares);
  }
  const float mean = Vec::sum(squares) / static_cast<float>(cols);
  const Vec::F scale = Vec::set(1.0f / __builtin_sqrtf(mean + norm.eps));
  const Vec::F one = Vec::set(norm.one_plus ? 1.0f : 0.0f);
  for (int i = 0; i < cols; i += Vec::kWidth) {
    const Vec::F w = Vec::add(one, Vec::load(norm.weight + i, cols - i));
    Vec::store(out + i, Vec::mul(Vec::mul(Vec::load(x + i, cols - i), scale), w), cols - i);
  }
}

template <class A>
void rms_norm(float* x, const void* delta, int cols, const NormArgs& norm, void* out) {
  if (delta) {
    const A* d = static_cast<const A*>(delta);
    for (int i = 0; i < cols; i += Vec::kWidth) {
      Vec::store(x + i, Vec::add(Vec::load(x + i, cols - i), Vec::load(d + i, cols - i)), cols - i);
    }
  }
  norm_row(x, cols, norm, static_cast<A*>(out));
}

template <class A>
void head_norm(void* x, int heads, int head_dim, const NormArgs& norm) {
  for (int h = 0; h < heads; ++h) {
    A* row = static_cast<A*>(x) + int64_t{h} * head_dim;
    norm_row(row, head_dim, norm, row);
  }
}

// (a, b) → (a cos - b sin, b cos + a sin), each product rounded, as transformers computes it.
template <class A>
void rope(void* x, int heads, int head_dim, int rotary_dim, const float* cos_sin) {
  const int half = rotary_dim / 2;
  for (int h = 0; h < heads; ++h) {
    A* a = static_cast<A*>(x) + int64_t{h} * head_dim;
    A* b = a + half;
    for (int i = 0; i < half; i += Vec::kWidth) {
      const int left = half - i;
      const Vec::F c = Vec::load(cos_sin + i, left), s = Vec::load(cos_sin + half + i, left);
      const Vec::F va = Vec::load(a + i, left), vb = Vec::load(b + i, left);
      Vec::store(a + i, Vec::sub(Vec::mul(va, c), Vec::mul(vb, s)), left);
      Vec::store(b + i, Vec::add(Vec::mul(vb, c), Vec::mul(va, s)), left);
    }
  }
}

template <class From, class To>
void convert(const From* from, int64_t count, To* to) {
  int64_t i = 0;
  for (; i + Vec::kWidth <= count; i += Vec::kWidth) Vec::store(to + i, Vec::load(from + i));
  const int left = static_cast<int>(count - i);
  if (left) Vec::store(to + i, Vec::load(from + i, left), left);
}

inline void to_float(const void* from, Element type, int64_t count, float* to) {
  if (type == Element::kBf16) return convert(static_cast<const Bf16*>(from), count, to);
  if (type == Element::kF16) return convert(static_cast<const F16*>(from), count, to);
  convert(static_cast<const float*>(from), count, to);
}

template <class A>
void activation_to(const void* from, int64_t count, Element type, void* to) {
  const A* a = static_cast<const A*>(from);
  if (type == Element::kBf16) return convert(a, count, static_cast<Bf16*>(to));
  convert(a, count, static_cast<float*>(to));
}

template <class A>
void silu_and_mul(const void* gate_up, int width, void* out) {
  const A* gate = static_cast<const A*>(gate_up);
  for (int i = 0; i < width; i += Vec::kWidth) {
    const int left = width - i;
    const Vec::F v = Vec::mul(silu(Vec::load(gate + i, left)), Vec::load(gate + width + i, left));
    Vec::store(static_cast<A*>(out) + i, v, left);
  }
}

template <class A>
void combine(const void* pairs, const float* weights, int top_k, int hidden, float* residual) {
  for (int i = 0; i < hidden; i += Vec::kWidth) {
    const int left = hidden - i;
    Vec::F sum = Vec::zero();
    for (int k = 0; k < top_k; ++k) {
      const A* row = static_cast<const A*>(pairs) + int64_t{k} * hidden;
      sum = Vec::fma(Vec::set(weights[k]), Vec::load(row + i, left), sum);
    }
    Vec::store(residual + i, Vec::add(Vec::load(residual + i, left), sum), left);
  }
}

inline float max_logit(const float* logits, int n, bool* nan) {
  Vec::F highest = Vec::set(logits[0]), residue = Vec::zero();
  int i = 0;
  for (; i + Vec::kWidth <= n; i += Vec::kWidth) {
    const Vec::F v = Vec::load(logits + i);
    highest = Vec::max(v, highest);
    residue = Vec::add(residue, Vec::mul(v, Vec::zero()));  // NaN for NaN and infinities
  }
  float max = Vec::max_lane(highest);
  float sum = Vec::sum(residue);
  for (; i < n; ++i) {
    if (logits[i] > max) max = logits[i];
    sum += logits[i] * 0.0f;
  }
  *nan = false;
  if (sum != sum) {  // rare: tell NaN from infinities
    for (i = 0; i < n; ++i) *nan = *nan || logits[i] != logits[i];
  }
  return max;
}

inline float exp_logits(const float* logits, int n, float max, float scale, float* out) {
  Vec::F sum = Vec::zero();
  for (int i = 0; i < n; i += Vec::kWidth) {
    const int left = n - i;
    const Vec::F shifted = Vec::sub(Vec::load(logits + i, left), Vec::set(max));
    Vec::F p = Vec::exp(Vec::mul(shifted, Vec::set(scale)));
    Vec::store(out + i, p, left);
    if (left < Vec::kWidth) p = Vec::load(out + i, left);  // zeros behind the end
    sum = Vec::add(sum, p);
  }
  return Vec::sum(sum);
}

}  // namespace vamp::cpu::VAMP_ISA
