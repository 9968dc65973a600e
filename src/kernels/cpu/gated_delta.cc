#include "kernels/cpu/gated_delta.h"

#include <bit>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace vamp::cpu {
namespace {

// Activations of either type as floats.
class Values {
 public:
  Values(const void* data, DType type) : data_(const_cast<void*>(data)), type_(type) {
    VAMP_CHECK(type == DType::kF32 || type == DType::kBf16);
  }
  float operator[](int64_t i) const {
    if (type_ == DType::kF32) return static_cast<const float*>(data_)[i];
    return std::bit_cast<float>(static_cast<uint32_t>(static_cast<const uint16_t*>(data_)[i])
                                << 16);
  }
  void set(int64_t i, float value) const {
    if (type_ == DType::kF32) {
      static_cast<float*>(data_)[i] = value;
      return;
    }
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded =
        std::isnan(value) ? bits | 0x400000u : bits + 0x7FFF + ((bits >> 16) & 1);
    static_cast<uint16_t*>(data_)[i] = static_cast<uint16_t>(rounded >> 16);
  }

 private:
  void* data_;
  DType type_;
};

float silu(float x) {
  return x / (1 + std::exp(-x));
}
float sigmoid(float x) {
  return 1 / (1 + std::exp(-x));
}
float softplus(float x) {
  return x > 20 ? x : std::log1p(std::exp(x));
}

// x / sqrt(sum x² + 1e-6) · scale
void normalise(float* x, int n, float scale) {
  float squares = 0;
  for (int i = 0; i < n; ++i) squares += x[i] * x[i];
  const float factor = scale / std::sqrt(squares + 1e-6f);
  for (int i = 0; i < n; ++i) x[i] *= factor;
}

// One token through one head's state [d, d]. k, q normalised; v becomes o.
void step(float* state, int d, const float* q, const float* k, float* v, float decay, float beta) {
  std::vector<float> change(static_cast<size_t>(d), 0.0f);
  for (int i = 0; i < d; ++i) {
    for (int j = 0; j < d; ++j) {
      float& s = state[i * d + j];
      s *= decay;
      change[static_cast<size_t>(j)] += s * k[i];
    }
  }
  for (int j = 0; j < d; ++j) {
    float& c = change[static_cast<size_t>(j)];
    c = beta * (v[j] - c);
    v[j] = 0;
  }
  for (int i = 0; i < d; ++i) {
    for (int j = 0; j < d; ++j) {
      float& s = state[i * d + j];
      s += k[i] * change[static_cast<size_t>(j)];
      v[j] += s * q[i];
    }
  }
}

}  // namespace

void gated_delta_conv(const void* qkvz, DType activation, const GatedDeltaBatch& batch,
                      const GatedDeltaShape& shape, const GatedDeltaWeights& weights, void* out) {
  const Values in(qkvz, activation), result(out, activation), states(batch.conv_states, activation);
  const int width = shape.conv_width, channels = shape.channels();
  std::vector<float> inputs;  // of one channel: the state's, then the tokens'
  for (int s = 0; s < batch.sequences; ++s) {
    const int begin = batch.query_start[s], count = batch.query_start[s + 1] - begin;
    if (count == 0) continue;
    for (int c = 0; c < channels; ++c) {
      const int64_t state = batch.slots[s] * batch.conv_stride + int64_t{c} * (width - 1);
      inputs.clear();
      for (int i = 0; i < width - 1; ++i) inputs.push_back(batch.starts[s] ? 0 : states[state + i]);
      for (int t = begin; t < begin + count; ++t)
        inputs.push_back(in[t * shape.qkvz_row() + shape.qkvz_column(c)]);
      for (int t = 0; t < count; ++t) {
        float sum = 0;
        for (int i = 0; i < width; ++i)
          sum += weights.conv[int64_t{c} * width + i] * inputs[static_cast<size_t>(t + i)];
        result.set(int64_t{begin + t} * channels + c, silu(sum));
      }
      for (int i = 0; i < width - 1; ++i)
        states.set(state + i, inputs[inputs.size() - static_cast<size_t>(width - 1 - i)]);
    }
  }
}

void gated_delta_rule(const void* convolved, const void* ba, DType activation,
                      const GatedDeltaBatch& batch, const GatedDeltaShape& shape,
                      const GatedDeltaWeights& weights, void* o) {
  const Values in(convolved, activation), gates(ba, activation), out(o, activation);
  const int d = shape.head_dim, keys = shape.key_heads * d;
  const auto size = static_cast<size_t>(d);
  std::vector<float> q(size), k(size), v(size);
  for (int s = 0; s < batch.sequences; ++s) {
    for (int h = 0; h < shape.value_heads; ++h) {
      float* const state = batch.states + batch.slots[s] * batch.state_stride + int64_t{h} * d * d;
      if (batch.starts[s] && batch.query_start[s] < batch.query_start[s + 1])
        std::fill_n(state, int64_t{d} * d, 0.0f);
      for (int t = batch.query_start[s]; t < batch.query_start[s + 1]; ++t) {
        const int64_t row = int64_t{t} * shape.channels(), key = int64_t{h / shape.ratio()} * d;
        for (int i = 0; i < d; ++i) {
          const auto at = static_cast<size_t>(i);
          q[at] = in[row + key + i];
          k[at] = in[row + keys + key + i];
          v[at] = in[row + 2 * keys + int64_t{h} * d + i];
        }
        normalise(q.data(), d, 1 / std::sqrt(static_cast<float>(d)));
        normalise(k.data(), d, 1);
        const int64_t gate = t * shape.ba_row();
        const float beta = sigmoid(gates[gate + shape.b_column(h)]);
        const float g = -std::exp(weights.a_log[h]) *
                        softplus(gates[gate + shape.a_column(h)] + weights.dt_bias[h]);
        step(state, d, q.data(), k.data(), v.data(), std::exp(g), beta);
        for (int i = 0; i < d; ++i)
          out.set((int64_t{t} * shape.value_heads + h) * d + i, v[static_cast<size_t>(i)]);
      }
    }
  }
}

void gated_delta_norm(const void* o, const void* qkvz, DType activation, int tokens,
                      const GatedDeltaShape& shape, const GatedDeltaWeights& weights, void* out) {
  const Values in(o, activation), z(qkvz, activation), result(out, activation);
  const int d = shape.head_dim;
  for (int t = 0; t < tokens; ++t) {
    for (int h = 0; h < shape.value_heads; ++h) {
      const int64_t row = (int64_t{t} * shape.value_heads + h) * d;
      const int64_t gate = t * shape.qkvz_row() + shape.z_column(h);
      float squares = 0;
      for (int i = 0; i < d; ++i) squares += in[row + i] * in[row + i];
      const float scale = 1 / std::sqrt(squares / static_cast<float>(d) + weights.norm_eps);
      for (int i = 0; i < d; ++i)
        result.set(row + i, in[row + i] * scale * weights.norm[i] * silu(z[gate + i]));
    }
  }
}

}  // namespace vamp::cpu
