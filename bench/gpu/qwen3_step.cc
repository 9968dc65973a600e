#include "gpu/qwen3_step.h"

#include "kernels/cuda/qk_rope_kv.h"

namespace vamp::cuda {
namespace {

using bf16 = __nv_bfloat16;
using Out = LinearPart::Out;
constexpr float kScale = 0.088f;

}  // namespace

const char* Qwen3Step::op_name(Op op) {
  constexpr const char* kNames[] = {
      "qkv",    "rope, cache write", "attention", "output projection", "norm",
      "router", "routing",           "experts",   "combine, norm",     "head"};
  return kNames[op];
}

Qwen3Step::Layer::Layer(uint64_t seed, bool own_experts)
    : qkv(size_t{kQkv} * kHidden),
      o(size_t{kHidden} * kAttention),
      router(size_t{128} * kHidden),
      gate_up(own_experts ? size_t{128} * 2 * 768 * kHidden : 0),
      down(own_experts ? size_t{128} * kHidden * 768 : 0) {
  for (auto* w : {&qkv, &o, &router, &gate_up, &down})
    if (w->size() > 0) fill_normal(w->get(), w->size(), 0.02f, ++seed);
}

MoeWeights Qwen3Step::experts(int l) const {
  if (experts_) return experts_(l);
  return {at(l).gate_up.get(), at(l).down.get(), size_t{4} * 768 * kHidden,
          size_t{2} * 768 * kHidden, DType::kBf16};
}

Qwen3Step::Qwen3Step(int layers, int kv_tokens, float skew, Experts experts)
    : experts_(std::move(experts)),
      kv_tokens_(kv_tokens),
      moe_(kMoe, kMaxTokens, layers, skew),
      head_(size_t{kVocab} * kHidden),
      residual_(kMaxTokens * kHidden),
      x_(kMaxTokens * kHidden),
      qkv_(kMaxTokens * kQkv),
      attention_(kMaxTokens * kAttention),
      router_logits_(kMaxTokens * 128),
      vocab_(size_t{256} * kVocab),
      norm_(kHidden),
      cos_sin_(kMaxTokens * 128) {
  for (int l = 0; l < layers; ++l)
    layers_.emplace_back(static_cast<uint64_t>(l) * 8 + 1, !experts_);
  cache_.layout = {layers, kKvHeads, kHeadDim, kBlockTokens, DType::kBf16};
  arena_ = DeviceBuffer<char>(cache_.layout.block_bytes() *
                              static_cast<size_t>(kv_tokens / kBlockTokens));
  cache_.arena = arena_.get();
  fill_normal(arena_.get(), arena_.size() / 2, 1.0f, 998);
  fill_normal(head_.get(), head_.size(), 0.02f, 999);
  fill_normal(x_.get(), x_.size(), 1.0f, 994);
  fill_normal_f32(norm_.get(), norm_.size(), 1.0f, 996);
  fill_normal_f32(cos_sin_.get(), cos_sin_.size(), 0.7f, 995);
  tune();
  FusedShape shape;
  shape.hidden = kHidden;
  shape.heads = kHeads;
  shape.kv_heads = kKvHeads;
  shape.head_dim = kHeadDim;
  shape.scale = kScale;
  shape.moe = kMoe;
  shape.gate_up_stride = this->experts(0).gate_up_stride;
  shape.down_stride = this->experts(0).down_stride;
  std::vector<FusedLayer> fused_layers;
  for (int l = 0; l < layers; ++l) {
    const MoeWeights moe = this->experts(l);
    FusedLayer f;
    f.in = at(l).qkv.get();
    f.out = at(l).o.get();
    f.router = at(l).router.get();
    f.gate_up = moe.gate_up;
    f.down = moe.down;
    f.input_norm = f.post_norm = f.q_norm = f.k_norm = norm_.get();
    f.cache_layer = l;
    f.logits = moe_.logits(l);
    fused_layers.push_back(f);
  }
  fused_ = std::make_unique<FusedDecode>(shape, fused_layers);
  fill_normal(residual_.get(), residual_.size(), 1.0f, 997);
}

void Qwen3Step::tune() {
  const LinearPart qkv = qkv_part(0), o = output_part(0), router = router_part(0),
                   head = head_part();
  linear_.tune(x_.get(), kHidden, kMaxTokens, {&qkv, 1});
  linear_.tune(attention_.get(), kAttention, kMaxTokens, {&o, 1});
  linear_.tune(x_.get(), kHidden, kMaxTokens, {&router, 1});
  linear_.tune(x_.get(), kHidden, 256, {&head, 1});
}

LinearPart Qwen3Step::qkv_part(int l) const {
  return part(at(l).qkv, kQkv, kHidden, Out::kActivation, qkv_.get());
}
LinearPart Qwen3Step::output_part(int l) const {
  return part(at(l).o, kHidden, kAttention, Out::kResidual, residual_.get());
}
LinearPart Qwen3Step::router_part(int l) const {
  return part(at(l).router, kMoe.experts, kHidden, Out::kFloat, router_logits_.get());
}
LinearPart Qwen3Step::head_part() const {
  return part(head_, kVocab, kHidden, Out::kFloat, vocab_.get());
}

void Qwen3Step::set_batch(int sequences, int fresh, int context) {
  VAMP_CHECK(sequences * context <= kv_tokens_ && sequences * fresh <= kMaxTokens,
             "{} sequences of {} tokens, {} new, are too many", sequences, context, fresh);
  batch_ = StepBatch(sequences, fresh, context);
  tokens_ = batch_.tokens();
  attention_op_.plan(batch_.attention_batch(), false, nullptr);
  check(cudaDeviceSynchronize(), "planning");
}

void Qwen3Step::attention(int l, cudaStream_t s) {
  if (batch_.decode()) {
    decode_attention(qkv_.get(), kQkv, batch_.decode_batch(), {kHeads, kKvHeads, kHeadDim}, cache_,
                     l, kScale, attention_.get(), s);
    return;
  }
  const bf16* k = qkv_.get() + kAttention;
  attention_op_.run(qkv_.get(), kQkv, cache_, l, kScale, attention_.get(), s,
                    {k, k + kKvHeads * kHeadDim, kQkv});
}

void Qwen3Step::run(Op op, int l, cudaStream_t s) {
  const auto linear = [&](const DeviceBuffer<bf16>& x, int rows, const LinearPart& p) {
    linear_.run(x.get(), p.weight.cols, rows, {&p, 1}, s);
  };
  switch (op) {
    case kQkvOp:
      return linear(x_, tokens_, qkv_part(l));
    case kRopeOp:
      return qk_norm_rope_write_kv(qkv_.get(), tokens_, {kHeads, kKvHeads, kHeadDim, kHeadDim, 0},
                                   norm(), norm(), cos_sin_.get(), cache_, l, batch_.slots(), s);
    case kAttentionOp:
      return attention(l, s);
    case kOutputOp:
      return linear(attention_, tokens_, output_part(l));
    case kNormOp:
      return add_rms_norm(nullptr, residual_.get(), tokens_, kHidden, norm(), x_.get(), s);
    case kRouterOp:
      return linear(x_, tokens_, router_part(l));
    case kRouteOp:
      return moe_.route(l, tokens_, s);
    case kExpertsOp:
      return moe_.experts(x_.get(), tokens_, experts(l), s, {}, !before_experts);
    case kCombineOp:
      return moe_.combine(tokens_, residual_.get(), norm(), x_.get(), s);
    case kHeadOp:
      return linear(x_, batch_.sequences(), head_part());
    case kNone:
      return;
  }
}

void Qwen3Step::run_fused(cudaStream_t s) {
  fused_->run(residual_.get(), batch_.fused_batch(cos_sin_.get(), cache_), s);
  run(kNormOp, 0, s);
}

void Qwen3Step::step(cudaStream_t s, Op left_out) {
  if (fused && left_out == kNone && batch_.decode() && tokens_ <= FusedDecode::kMaxTokens &&
      !before_experts && !staged.stage) {
    run_fused(s);
    return run(kHeadOp, 0, s);
  }
  run(kNormOp, 0, s);
  for (int l = 0; l < layers(); ++l) {
    for (int op = kQkvOp; op < kHeadOp; ++op) {
      if (staged.stage && op == kExpertsOp) {
        run_staged_experts(l, s);
        continue;
      }
      if (op == kExpertsOp && before_experts) before_experts(l, s);
      if (op != left_out) run(static_cast<Op>(op), l, s);
      if (op == kCombineOp && after_experts) after_experts(l, s);
    }
  }
  if (left_out != kHeadOp) run(kHeadOp, 0, s);
}

void Qwen3Step::run_staged_experts(int l, cudaStream_t s) {
  routed_.record(s);
  routed_.order(side_.get());
  staged.stage(l, side_.get());
  arrived_.record(side_.get());
  for (const bool given_up : {false, true}) {
    if (given_up) arrived_.order(s);
    const ExpertPart part{staged.first(l), given_up};
    moe_.experts(x_.get(), tokens_, experts(l), s, part);
  }
}

double Qwen3Step::bytes() {
  moe_.route(layers() - 1, tokens_, nullptr);
  const double layer = 2.0 * (kQkv * kHidden + kHidden * kAttention + 128 * kHidden) +
                       moe_.active() * 6.0 * 768 * kHidden +
                       double(batch_.sequences()) * batch_.context() * 4 * kKvHeads * kHeadDim;
  return layer * layers() + 2.0 * kVocab * kHidden;
}

}  // namespace vamp::cuda
