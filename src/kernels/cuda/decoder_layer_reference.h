// One decoder layer, all that it reads and keeps, for the device and for the CPU, and what the CPU
// makes of it in f32: what decoder_layer_test.cc holds the device's ops and the fused kernel to.
#pragma once

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/cpu/gated_delta.h"
#include "kernels/cuda/cuda_test_support.h"

namespace vamp::cuda::layer_test {

using test::Tensor;
using Out = LinearPart::Out;

enum class Kind { kQwen3, kNextFull, kNextLinear };
struct LayerCase {
  Kind kind;
  int sequences, fresh, before;  // new tokens of each, and tokens in the cache before them
  bool fused = false;            // by the kernel that takes whole layers
  int ranks = 1;                 // one of so many ranks' shapes (of Qwen3-Next)
  int intermediate = 768;        // of Qwen3's experts
};

constexpr int H = 2048, kExperts = 16, kTopK = 4, kBlockTokens = 16;
constexpr size_t sz(int64_t n) {
  return static_cast<size_t>(n);
}

// Random values, many at little cost: a few again and again, of a number that rows have no divisor
// with.
inline Tensor repeated_random(size_t count, Random& random, double scale) {
  constexpr size_t kFew = 1000003;
  Tensor t(DType::kBf16, count);
  for (size_t i = 0; i < std::min(count, kFew); ++i)
    t.set(i, static_cast<float>(random.normal() * scale));
  for (size_t i = kFew; i < count; i += kFew)
    std::memcpy(t.at(i), t.data(), std::min(count - i, kFew) * t.width());
  return t;
}

// A weight or activation on both sides: bf16 on the device, the same values in f32 on the host.
struct Both {
  Tensor host;
  OnDevice device;
  Both(size_t count, Random& random, double scale) : Both(repeated_random(count, random, scale)) {}
  explicit Both(const Tensor& bf) : host(DType::kF32, bf.size()), device(bf) {
    for (size_t i = 0; i < bf.size(); ++i) host.set(i, bf[i]);
  }
};
struct BothF32 {
  Tensor host;
  OnDevice device;
  BothF32(size_t count, Random& random, double scale)
      : host(Tensor::random(DType::kF32, count, random, scale)), device(host) {}
  const float* h() const { return static_cast<const float*>(host.data()); }
};
inline float* floats(Tensor& t) {
  return static_cast<float*>(t.data());
}

// The step's sequences, on the host.
struct Tables {
  std::vector<int32_t> ids, query_start, block_start, numbers, starts, contexts, last, positions,
      kv_slots;
  explicit Tables(const LayerCase& c) {
    const int context = c.before + c.fresh, blocks = (context + kBlockTokens - 1) / kBlockTokens;
    ids.resize(sz(c.sequences * blocks));
    std::iota(ids.rbegin(), ids.rend(), 0);
    for (int s = 0; s <= c.sequences; ++s) {
      query_start.push_back(s * c.fresh);
      block_start.push_back(s * blocks);
    }
    for (int s = 0; s < c.sequences; ++s) {
      numbers.push_back(s);
      starts.push_back(c.before == 0);
      contexts.push_back(context);
      last.push_back((context - 1) % kBlockTokens + 1);
      for (int p = c.before; p < context; ++p) {
        positions.push_back(p);
        kv_slots.push_back(ids[sz(s * blocks + p / kBlockTokens)] * kBlockTokens +
                           p % kBlockTokens);
      }
    }
  }
};

class LayerReference {
 public:
  explicit LayerReference(const LayerCase& c)
      : c_(c),
        next_(c_.kind != Kind::kQwen3),
        heads_(next_ ? 16 / c_.ranks : 32),
        kv_heads_(next_ ? 2 / c_.ranks : 4),
        dim_(next_ ? 256 : 128),
        rotary_(next_ ? 64 : 128),
        shape_{kExperts, kTopK, H, next_ ? 512 / c_.ranks : c_.intermediate},
        tokens_(c_.sequences * c_.fresh),
        delta_{16 / c_.ranks, 32 / c_.ranks, 128, 4},
        tables_(c_),
        cache_{nullptr, {1, kv_heads_, dim_, kBlockTokens, DType::kBf16}} {}

  // The residual after the layer; what it keeps of the sequences is in the members' host sides.
  Tensor run_on_cpu();

 protected:
  NormWeight norm(const float* weight) const { return {weight, 1e-6f, next_}; }
  int64_t row() const { return (next_ ? 2 : 1) * heads_ * dim_ + 2 * kv_heads_ * dim_; }
  int out_width() const { return heads_ * dim_; }  // of both kinds of layers' outputs
  // Of the shared expert: gate, up, and its gate, padded.
  int shared_row() const { return 2 * shape_.intermediate + 8; }
  static constexpr float scale(int dim) { return dim == 256 ? 0.0625f : 0.08838835f; }

  const LayerCase c_;
  const bool next_;
  const int heads_, kv_heads_, dim_, rotary_;
  const MoeShape shape_;
  const int tokens_;
  const GatedDeltaShape delta_;
  const Tables tables_;
  KvCache cache_;

  Random random_{static_cast<uint64_t>(c_.sequences * 100 + c_.fresh)};
  const double unit_ = 1 / std::sqrt(H);
  Both residual_{sz(tokens_) * H, random_, 1.0};
  BothF32 norm_{H, random_, 0.3}, conv_{sz(delta_.channels()) * 4, random_, 0.5},
      a_log_{32, random_, 0.5}, dt_bias_{32, random_, 1.0}, delta_norm_{128, random_, 1.0},
      cos_sin_{sz(tokens_ * rotary_), random_, 0.7};
  Both in_{sz((c_.kind == Kind::kNextLinear ? delta_.qkvz_cols() : row()) * H), random_, unit_},
      ba_{sz(delta_.ba_cols()) * H, random_, unit_}, out_{sz(out_width()) * H, random_, 1.0 / 64},
      router_{sz(kExperts) * H, random_, unit_}, shared_in_{sz(shared_row()) * H, random_, unit_},
      shared_down_{sz(shape_.intermediate) * H, random_, 1.0 / 23},
      gate_up_{sz(kExperts * 2 * shape_.intermediate) * H, random_, unit_},
      down_{sz(kExperts * shape_.intermediate) * H, random_, 1.0 / 25};
  Both arena_{sz(static_cast<int64_t>(tables_.ids.size()) * cache_.layout.block_stride()), random_,
              1.0};
  BothF32 states_{sz(c_.sequences * delta_.state_size()), random_, 0.2};
  OnDevice d_states_{transposed(states_.host, 128)};
  Both conv_states_{sz(c_.sequences * delta_.conv_state_size()), random_, 1.0};

 private:
  void cpu_attention(Ops& ops, Tensor& x, Tensor& residual);
  void cpu_linear_attention(Ops& ops, Tensor& x, Tensor& residual);
  void cpu_experts(Ops& ops, Tensor& x, Tensor& residual);
  void cpu_product(Ops& ops, const Tensor& x, const Both& w, int N, int K, Out kind, Tensor& out) {
    const LinearPart part{{w.host.data(), DType::kF32, N, K}, nullptr, out.data(), N, kind};
    ops.linear(x.data(), K, tokens_, {&part, 1});
  }
};

inline void LayerReference::cpu_attention(Ops& ops, Tensor& x, Tensor& residual) {
  const int width = heads_ * dim_, kv = kv_heads_ * dim_;
  Tensor in(DType::kF32, sz(tokens_ * row())), out(DType::kF32, sz(int64_t{tokens_} * width));
  cpu_product(ops, x, in_, static_cast<int>(row()), H, Out::kActivation, in);
  float *q = floats(in), *k = q + width;
  ops.head_norm(q, row(), tokens_, heads_, dim_, norm(norm_.h()));
  ops.head_norm(k, row(), tokens_, kv_heads_, dim_, norm(norm_.h()));
  ops.rope(q, row(), tokens_, heads_, dim_, rotary_, cos_sin_.h());
  ops.rope(k, row(), tokens_, kv_heads_, dim_, rotary_, cos_sin_.h());
  KvCache cache = cache_;
  cache.layout.dtype = DType::kF32;
  cache.arena = arena_.host.data();
  const SequenceBatch batch{tokens_,
                            c_.sequences,
                            tables_.positions.data(),
                            tables_.query_start.data(),
                            tables_.block_start.data(),
                            tables_.ids.data()};
  ops.write_kv(k, row(), k + kv, row(), batch, cache, 0);
  ops.attention(q, row(), batch, cache, 0, heads_, scale(dim_), out.data(), width);
  if (next_) {
    for (int t = 0; t < tokens_; ++t) {
      for (int i = 0; i < width; ++i) {
        const float gate = q[t * row() + width + 2 * kv + i];
        floats(out)[int64_t{t} * width + i] /= 1 + std::exp(-gate);
      }
    }
  }
  cpu_product(ops, out, out_, H, width, Out::kResidual, residual);
}

inline void LayerReference::cpu_linear_attention(Ops& ops, Tensor& x, Tensor& residual) {
  Tensor in(DType::kF32, sz(int64_t{tokens_} * delta_.qkvz_cols())),
      ba(DType::kF32, sz(int64_t{tokens_} * delta_.ba_cols())),
      mixed(DType::kF32, sz(int64_t{tokens_} * delta_.channels())),
      o(DType::kF32, sz(int64_t{tokens_} * out_width()));
  cpu_product(ops, x, in_, delta_.qkvz_cols(), H, Out::kActivation, in);
  cpu_product(ops, x, ba_, delta_.ba_cols(), H, Out::kActivation, ba);
  const GatedDeltaBatch batch{tokens_,
                              c_.sequences,
                              tables_.query_start.data(),
                              tables_.numbers.data(),
                              tables_.starts.data(),
                              floats(states_.host),
                              delta_.state_size(),
                              conv_states_.host.data(),
                              delta_.conv_state_size(),
                              c_.fresh == 1};
  const GatedDeltaWeights weights{conv_.h(), a_log_.h(), dt_bias_.h(), delta_norm_.h(), 1e-6f};
  cpu::gated_delta_conv(in.data(), DType::kF32, batch, delta_, weights, mixed.data());
  cpu::gated_delta_rule(mixed.data(), ba.data(), DType::kF32, batch, delta_, weights, o.data());
  cpu::gated_delta_norm(o.data(), in.data(), DType::kF32, tokens_, delta_, weights, o.data());
  cpu_product(ops, o, out_, H, out_width(), Out::kResidual, residual);
}

inline void LayerReference::cpu_experts(Ops& ops, Tensor& x, Tensor& residual) {
  if (next_) {
    const int I = shape_.intermediate, in_row = shared_row();
    Tensor in(DType::kF32, sz(int64_t{tokens_} * in_row)),
        act(DType::kF32, sz(int64_t{tokens_} * I));
    cpu_product(ops, x, shared_in_, in_row, H, Out::kActivation, in);
    for (int t = 0; t < tokens_; ++t) {
      const float* r = floats(in) + t * in_row;
      const float share = 1 / (1 + std::exp(-r[2 * I]));
      for (int i = 0; i < I; ++i)
        floats(act)[t * I + i] = r[i] / (1 + std::exp(-r[i])) * r[I + i] * share;
    }
    cpu_product(ops, act, shared_down_, H, I, Out::kResidual, residual);
  }
  Tensor logits(DType::kF32, sz(tokens_ * kExperts));
  cpu_product(ops, x, router_, kExperts, H, Out::kFloat, logits);
  std::vector<int32_t> experts(sz(tokens_ * kTopK)), start(kExperts + 1), pairs(experts.size()),
      all(kExperts);
  std::vector<float> weights(experts.size());
  std::iota(all.begin(), all.end(), 0);
  const MoeRouting routing{experts.data(), weights.data(), start.data(), pairs.data()};
  ops.route(floats(logits), tokens_, shape_, true, routing);
  std::vector<std::byte> workspace(ops.moe_workspace_bytes(tokens_, shape_));
  const size_t matrix = sz(int64_t{4} * H * shape_.intermediate);
  ops.moe_experts(x.data(), tokens_, shape_,
                  {gate_up_.host.data(), down_.host.data(), 2 * matrix, matrix, DType::kF32},
                  routing, all, workspace.data());
  ops.moe_combine(workspace.data(), tokens_, shape_, routing, residual.data());
}

inline Tensor LayerReference::run_on_cpu() {
  const auto ops = make_cpu_ops({.threads = 0, .activation = DType::kF32, .isa = {}});
  Tensor want = residual_.host, x(DType::kF32, sz(tokens_) * H);
  ops->rms_norm(want.data(), tokens_, H, norm(norm_.h()), x.data());
  c_.kind == Kind::kNextLinear ? cpu_linear_attention(*ops, x, want) : cpu_attention(*ops, x, want);
  ops->rms_norm(want.data(), tokens_, H, norm(norm_.h()), x.data());
  cpu_experts(*ops, x, want);
  return want;
}

}  // namespace vamp::cuda::layer_test
