#include "gpu/qwen3_next_step.h"

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/gated_delta.h"
#include "kernels/cuda/gated_delta_chunked.h"
#include "kernels/cuda/qk_rope_kv.h"

namespace vamp::cuda {
namespace {

using bf16 = __nv_bfloat16;
using Out = LinearPart::Out;

// Expert 0 is the shared one; the router's first row is its gate. Padded to a multiple of 8.
constexpr int kExperts = 513, kRouterRows = 520;
constexpr float kScale = 0.0625f;

}  // namespace

const char* Qwen3NextStep::op_name(Op op) {
  constexpr const char* kNames[] = {"input product", "gated delta",   "rope, cache write",
                                    "attention",     "gate",          "output product",
                                    "norm",          "router",        "routing",
                                    "experts",       "combine, norm", "head"};
  return kNames[op];
}

Qwen3NextStep::Qwen3NextStep(int ranks, int own_experts, int kv_tokens, int max_sequences)
    : ranks_(ranks),
      heads_(16 / ranks),
      kv_heads_(2 / ranks),
      delta_{16 / ranks, 32 / ranks, 128, 4},
      moe_({kExperts, 11, kHidden, 512 / ranks}, kMaxTokens, kLayers, 0, /*shared=*/true),
      attention_op_({16 / ranks, 2 / ranks, kHeadDim}, kBlockTokens) {
  const auto filled = [](size_t count, float scale, uint64_t seed) {
    DeviceBuffer<bf16> w(count);
    fill_normal(w.get(), count, scale, seed);
    return w;
  };
  const auto filled_f32 = [](size_t count, float scale, uint64_t seed) {
    DeviceBuffer<float> w(count);
    fill_normal_f32(w.get(), count, scale, seed);
    return w;
  };
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  const int64_t H = kHidden, I = moe_.shape().intermediate;
  delta_.qkvz_stride = delta_.ba_stride = delta_.qkvz_cols() + delta_.ba_cols();  // one product
  for (int l = 0; l < own_experts; ++l) {
    const auto seed = static_cast<uint64_t>(l) * 2 + 5000;
    experts_.push_back({filled(size(kExperts * 2 * I * H), 0.02f, seed),
                        filled(size(kExperts * I * H), 0.02f, seed + 1)});
  }
  const int64_t delta_out = delta_.value_heads * delta_.head_dim;
  for (int l = 0; l < kLayers; ++l) {
    const auto seed = static_cast<uint64_t>(l) * 16 + 1;
    const int64_t in = is_full(l) ? (2 * heads_ + 2 * kv_heads_) * kHeadDim : delta_.qkvz_stride;
    Layer layer;
    layer.in = filled(size(in * H), 0.02f, seed);
    layer.out = filled(size(H * (is_full(l) ? heads_ * kHeadDim : delta_out)), 0.02f, seed + 1);
    layer.router = filled(size(kRouterRows * H), 0.02f, seed + 2);
    if (!is_full(l)) {
      layer.states = filled_f32(size(max_sequences * delta_.state_size()), 0.1f, seed + 6);
      layer.conv_states = filled(size(max_sequences * delta_.conv_state_size()), 1.0f, seed + 7);
    }
    layers_.push_back(std::move(layer));
  }
  cache_.layout = {kLayers / kFullEvery, kv_heads_, kHeadDim, kBlockTokens, DType::kBf16};
  arena_ = DeviceBuffer<char>(cache_.layout.block_bytes() *
                              static_cast<size_t>(kv_tokens / kBlockTokens));
  fill_normal(arena_.get(), arena_.size() / 2, 1.0f, 998);
  cache_.arena = arena_.get();
  head_ = filled(size(int64_t{kVocab / ranks} * H), 0.02f, 999);
  const int64_t T = kMaxTokens;
  residual_ = filled(size(T * H), 1.0f, 997);
  x_ = filled(size(T * H), 1.0f, 994);
  in_ = filled(size(T * 12352), 1.0f, 993);
  mixed_ = filled(size(T * delta_.channels()), 1.0f, 991);
  out_ = filled(size(T * 4096), 1.0f, 990);
  router_logits_ = DeviceBuffer<float>(size(T * kRouterRows));
  vocab_ = DeviceBuffer<float>(size(int64_t{max_sequences} * kVocab));
  norm_ = filled_f32(size_t{kHidden}, 0.1f, 987);
  cos_sin_ = filled_f32(size(T * kRotary), 0.7f, 986);
  conv_ = filled_f32(size(delta_.channels() * 4), 0.3f, 985);
  a_log_ = filled_f32(32, 0.3f, 984);
  dt_bias_ = filled_f32(32, 0.3f, 983);
  delta_norm_ = filled_f32(128, 0.3f, 982);
  delta_scratch_ =
      DeviceBuffer<char>(gated_delta_chunked_scratch_bytes(kMaxTokens, max_sequences, delta_));
  make_fused();
}

MoeWeights Qwen3NextStep::experts(int l) const {
  const Experts& e = experts_[static_cast<size_t>(l) % experts_.size()];
  const size_t matrix = size_t{2} * kHidden * static_cast<size_t>(moe_.shape().intermediate);
  return {e.gate_up.get(), e.down.get(), 2 * matrix, matrix, DType::kBf16};
}

void Qwen3NextStep::make_fused() {
  FusedShape shape;
  shape.hidden = kHidden;
  shape.heads = heads_;
  shape.kv_heads = kv_heads_;
  shape.head_dim = kHeadDim;
  shape.rotary_dim = kRotary;
  shape.gated = true;
  shape.scale = kScale;
  shape.one_plus = true;
  shape.delta = delta_;
  shape.moe = moe_.shape();
  shape.shared_expert = true;
  shape.gate_up_stride = experts(0).gate_up_stride;
  shape.down_stride = experts(0).down_stride;
  std::vector<FusedLayer> layers;
  for (int l = 0; l < kLayers; ++l) {
    const Layer& w = layers_[static_cast<size_t>(l)];
    FusedLayer f;
    f.in = w.in.get();
    f.out = w.out.get();
    f.router = w.router.get();
    f.gate_up = experts(l).gate_up;
    f.down = experts(l).down;
    f.input_norm = f.post_norm = norm_.get();
    if (is_full(l)) {
      f.q_norm = f.k_norm = norm_.get();
      f.cache_layer = l / kFullEvery;
    } else {
      f.delta = delta_weights();
      f.states = w.states.get();
      f.state_stride = delta_.state_size();
      f.conv_states = w.conv_states.get();
      f.conv_stride = delta_.conv_state_size();
    }
    f.logits = moe_.logits(l);
    layers.push_back(f);
  }
  fused_ = std::make_unique<FusedDecode>(shape, layers);
}

void Qwen3NextStep::set_batch(int sequences, int fresh, int context) {
  batch_ = StepBatch(sequences, fresh, context);
  attention_op_.plan(batch_.attention_batch(), false, nullptr);
  check(cudaDeviceSynchronize(), "planning");
}

void Qwen3NextStep::linear(const bf16* x, int rows, const DeviceBuffer<bf16>& w, int N, int K,
                           Out kind, void* out, cudaStream_t s) {
  const LinearPart part{{w.get(), DType::kBf16, N, K}, nullptr, out, N, kind};
  linear_.run(x, K, rows, {&part, 1}, s);
}

void Qwen3NextStep::attention(int l, cudaStream_t s) {
  const int row = input_width(l), cache_layer = l / kFullEvery;
  const bf16* k = in_.get() + query_width();
  if (batch_.decode())
    decode_attention(in_.get(), row, batch_.decode_batch(), {heads_, kv_heads_, kHeadDim}, cache_,
                     cache_layer, kScale, out_.get(), s);
  else
    attention_op_.run(in_.get(), row, cache_, cache_layer, kScale, out_.get(), s,
                      {k, k + key_width(), row});
}

void Qwen3NextStep::linear_attention(int l, cudaStream_t s) {
  const Layer& w = layers_[static_cast<size_t>(l)];
  const int tokens = batch_.tokens();
  const GatedDeltaWeights weights = delta_weights();
  const GatedDeltaBatch batch{tokens,
                              batch_.sequences(),
                              batch_.query_start(),
                              batch_.numbers(),
                              batch_.starts(),
                              w.states.get(),
                              delta_.state_size(),
                              w.conv_states.get(),
                              delta_.conv_state_size(),
                              batch_.decode()};
  const bf16* ba = in_.get() + delta_.qkvz_cols();
  if (gated_delta_takes_decode(batch, delta_)) {
    gated_delta_decode(in_.get(), ba, batch, delta_, weights, out_.get(), s);
  } else {
    gated_delta_conv(in_.get(), batch, delta_, weights, mixed_.get(), s);
    if (gated_delta_takes_chunked(batch, delta_))
      gated_delta_rule_chunked(mixed_.get(), ba, batch, delta_, weights, out_.get(), {},
                               delta_scratch_.get(), s);
    else
      gated_delta_rule(mixed_.get(), ba, batch, delta_, weights, out_.get(), s);
    gated_delta_norm(out_.get(), in_.get(), tokens, delta_, weights, out_.get(), s);
  }
}

void Qwen3NextStep::run(Op op, int l, cudaStream_t s) {
  const Layer& w = layers_[static_cast<size_t>(l)];
  const int tokens = batch_.tokens(), row = input_width(l), width = query_width();
  const bool full = is_full(l);
  switch (op) {
    case kInputOp:
      return linear(x_.get(), tokens, w.in, row, kHidden, Out::kActivation, in_.get(), s);
    case kDeltaOp:
      if (!full) linear_attention(l, s);
      return;
    case kRopeOp:
      if (full)
        qk_norm_rope_write_kv(in_.get(), tokens, {heads_, kv_heads_, kHeadDim, kRotary, row},
                              norm(), norm(), cos_sin_.get(), cache_, l / kFullEvery,
                              batch_.slots(), s);
      return;
    case kAttentionOp:
      if (full) attention(l, s);
      return;
    case kGateOp:
      if (full)
        multiply_sigmoid(out_.get(), in_.get() + width + 2 * key_width(), row, tokens, width, s);
      return;
    case kOutputOp:
      return linear(out_.get(), tokens, w.out, kHidden,
                    full ? width : delta_.value_heads * delta_.head_dim, Out::kResidual,
                    residual_.get(), s);
    case kNormOp:
      return add_rms_norm(nullptr, residual_.get(), tokens, kHidden, norm(), x_.get(), s);
    case kRouterOp:
      return linear(x_.get(), tokens, w.router, kRouterRows, kHidden, Out::kFloat,
                    router_logits_.get(), s);
    case kRouteOp:
      return moe_.route(l, tokens, s);
    case kExpertsOp:
      return moe_.experts(x_.get(), tokens, experts(l), s, {}, /*in_place=*/true);
    case kCombineOp:
      return moe_.combine(tokens, residual_.get(), norm(), x_.get(), s);
    case kHeadOp:
      return linear(x_.get(), batch_.sequences(), head_, kVocab / ranks_, kHidden, Out::kFloat,
                    vocab_.get(), s);
    case kNone:
      return;
  }
}

void Qwen3NextStep::step(cudaStream_t s, Op left_out) {
  const bool whole =
      fused && left_out == kNone && batch_.decode() && batch_.tokens() <= FusedDecode::kMaxTokens;
  if (whole) fused_->run(residual_.get(), batch_.fused_batch(cos_sin_.get(), cache_), s);
  run(kNormOp, 0, s);
  for (int l = 0; l < (whole ? 0 : kLayers); ++l) {
    for (int op = kInputOp; op < kHeadOp; ++op)
      if (op != left_out) run(static_cast<Op>(op), l, s);
  }
  if (left_out != kHeadOp) run(kHeadOp, 0, s);
}

double Qwen3NextStep::bytes() {
  moe_.route(kLayers - 1, batch_.tokens(), nullptr);
  const double H = kHidden, full = kLayers / kFullEvery, delta = kLayers - full;
  const double width = heads_ * kHeadDim, kv = kv_heads_ * kHeadDim,
               value = delta_.value_heads * delta_.head_dim;
  const double dense = full * (2 * width + 2 * kv + width) * H +
                       delta * (double(delta_.qkvz_row()) + value) * H +
                       kLayers * double(kRouterRows) * H + H * kVocab / ranks_;
  const double experts = kLayers * moe_.active() * 3 * H * moe_.shape().intermediate;
  const double contexts = full * batch_.sequences() * double(batch_.context()) * 2 * kv;
  const double states =
      delta * batch_.sequences() *
      (8.0 * double(delta_.state_size()) + 4.0 * double(delta_.conv_state_size()));
  return 2 * (dense + experts + contexts) + states;
}

}  // namespace vamp::cuda
