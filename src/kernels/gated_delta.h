// Gated DeltaNet (Yang, Kautz, Hatamizadeh 2024, as Qwen3-Next has it): a layer whose memory of a
// sequence is one matrix a head instead of keys and values. What its operations share, on every
// backend: plain pointers and shapes.
//
// With S [key dim, value dim] the state of a value head, which reads key head h / (value_heads /
// key_heads):
//
//   q, k, v = SiLU(causal convolution of width w over time, a filter for each channel)
//   q = q / sqrt(sum q² + 1e-6) / sqrt(head_dim);  k = k / sqrt(sum k² + 1e-6)
//   beta = sigmoid(b);  g = -exp(A_log) softplus(a + dt_bias)
//   S = e^g S;  S += k (beta (v - Sᵀ k))ᵀ;  o = Sᵀ q
//   out = o / sqrt(mean(o²) + eps) · weight · SiLU(z)
#pragma once

#include <cstdint>

#include "kernels/ops.h"

namespace vamp {

struct GatedDeltaShape {
  int key_heads = 0, value_heads = 0;
  int head_dim = 0;                        // of keys and values
  int conv_width = 0;                      // 4
  int64_t qkvz_stride = 0, ba_stride = 0;  // elements between tokens' rows; 0: they lie dense

  // Value heads of a key head.
  constexpr int ratio() const { return value_heads / key_heads; }
  // Convolved channels, in order: q of every key head, k of every key head, v of every value head.
  constexpr int channels() const { return (2 * key_heads + value_heads) * head_dim; }
  // The input projections' rows lie by key head, as checkpoints have them: [q, k, v of its value
  // heads, z of them] each head_dim wide, and [b of its value heads, a of them].
  constexpr int qkvz_head() const { return (2 + 2 * ratio()) * head_dim; }
  constexpr int qkvz_cols() const { return key_heads * qkvz_head(); }
  constexpr int ba_cols() const { return 2 * value_heads; }
  constexpr int64_t qkvz_row() const { return qkvz_stride ? qkvz_stride : qkvz_cols(); }
  constexpr int64_t ba_row() const { return ba_stride ? ba_stride : ba_cols(); }
  // Column of convolved channel c in a row of qkvz.
  constexpr int qkvz_column(int c) const {
    const int keys = key_heads * head_dim;
    if (c < 2 * keys) {
      const int in = c % keys;
      return in / head_dim * qkvz_head() + (c < keys ? 0 : head_dim) + in % head_dim;
    }
    const int in = c - 2 * keys, width = ratio() * head_dim;
    return in / width * qkvz_head() + 2 * head_dim + in % width;
  }
  // Column of z of a value head.
  constexpr int z_column(int value_head) const {
    return value_head / ratio() * qkvz_head() + (2 + ratio() + value_head % ratio()) * head_dim;
  }
  constexpr int b_column(int value_head) const {
    return value_head / ratio() * 2 * ratio() + value_head % ratio();
  }
  constexpr int a_column(int value_head) const { return b_column(value_head) + ratio(); }
  constexpr int64_t state_size() const {
    return int64_t{value_heads} * head_dim * head_dim;  // f32
  }
  constexpr int64_t conv_state_size() const { return int64_t{channels()} * (conv_width - 1); }
};

// A layer's weights, f32.
struct GatedDeltaWeights {
  const float* conv = nullptr;     // [channels, conv_width], the oldest input's first
  const float* a_log = nullptr;    // [value_heads]
  const float* dt_bias = nullptr;  // [value_heads]
  const float* norm = nullptr;     // [head_dim]
  float norm_eps = 1e-6f;
};

// Sequences of a step and their memories in one layer. Sequence s owns rows [query_start[s],
// query_start[s+1]) and memory slot slots[s] (none shared). A sequence that starts (`starts[s]`)
// has an empty memory: what its slot holds is not read.
struct GatedDeltaBatch {
  int tokens = 0, sequences = 0;
  const int32_t* query_start = nullptr;  // [sequences + 1]
  const int32_t* slots = nullptr;        // [sequences]
  const int32_t* starts = nullptr;       // [sequences] 0 or 1
  float* states = nullptr;               // slot · state_stride: [value_heads, key dim, value dim],
                                         // on CUDA [value_heads, value dim, key dim]
  int64_t state_stride = 0;              // floats between slots
  void* conv_states = nullptr;  // activations; slot · conv_stride: [channels, conv_width-1],
  int64_t conv_stride = 0;      // the last inputs, oldest first
  bool single = false;          // every sequence has exactly one token (a decode step)
};

}  // namespace vamp
