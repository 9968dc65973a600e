// Whole decoder layers as captured graphs of CUDA ops, against the CPU ops in f32: one of
// Qwen3-30B-A3B and both kinds of Qwen3-Next-80B-A3B, real widths, few experts. Without a GPU every
// test says so and is skipped.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/decoder_layer_reference.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/fused_decode.h"
#include "kernels/cuda/gated_delta.h"
#include "kernels/cuda/gated_delta_chunked.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/moe_grouped.h"
#include "kernels/cuda/moe_routing.h"
#include "kernels/cuda/moe_skinny.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/qk_rope_kv.h"

namespace vamp::cuda::layer_test {
namespace {

// The layer on the device.
class Layer : LayerReference {
 public:
  using LayerReference::LayerReference;
  void check_layer();

 private:
  void gpu_attention(cudaStream_t s);
  void gpu_linear_attention(cudaStream_t s);
  void gpu_experts(cudaStream_t s);
  void gpu_layer(cudaStream_t s);
  void check_memories() const;
  FusedShape fused_shape() const;
  FusedLayer fused_layer();
  void gpu_product(const OnDevice& x, const Both& w, int N, int K, Out kind, void* out,
                   cudaStream_t s) {
    const LinearPart part{{w.device.bf(), DType::kBf16, N, K}, nullptr, out, N, kind};
    linear_.run(x.bf(), K, tokens_, {&part, 1}, s);
  }
  OnDevice device_buffer(int64_t count, DType type = DType::kBf16) const {
    return OnDevice(Tensor(type, sz(count)));
  }

  // On the device.
  Linear linear_;
  DeviceBuffer<int32_t> d_ids_{tables_.ids}, d_query_start_{tables_.query_start},
      d_block_start_{tables_.block_start}, d_slots_{tables_.numbers}, d_starts_{tables_.starts},
      d_contexts_{tables_.contexts}, d_last_{tables_.last}, d_kv_slots_{tables_.kv_slots};
  Attention attention_{{heads_, kv_heads_, dim_}, kBlockTokens, size_t{64} << 20};
  OnDevice d_x_ = device_buffer(int64_t{tokens_} * H),
           d_in_ = device_buffer(int64_t{tokens_} * 12288),
           d_ba_ = device_buffer(int64_t{tokens_} * 64),
           d_mixed_ = device_buffer(int64_t{tokens_} * 8192),
           d_out_ = device_buffer(int64_t{tokens_} * 4096),
           d_shared_ = device_buffer(int64_t{tokens_} * 1032),
           d_act_ = device_buffer(int64_t{tokens_} * 512),
           d_logits_ = device_buffer(int64_t{tokens_} * kExperts, DType::kF32),
           d_activation_ = device_buffer(int64_t{tokens_} * kTopK * shape_.intermediate),
           d_y_ = device_buffer(int64_t{tokens_} * kTopK * H),
           d_y32_ = device_buffer(int64_t{tokens_} * kTopK * H, DType::kF32);
  // For the fused kernel: the shared expert is expert 0, b and a are rows of the input product.
  DeviceBuffer<__nv_bfloat16> all_in_, all_router_, all_gate_up_, all_down_;
  std::unique_ptr<FusedDecode> fused_;
  RoutingBuffers lists_{tokens_, kExperts, kTopK};
  DeviceBuffer<char> d_scratch_{gated_delta_chunked_scratch_bytes(tokens_, c_.sequences, delta_)};
};

void Layer::gpu_attention(cudaStream_t s) {
  const int width = heads_ * dim_, kv = kv_heads_ * dim_, r = static_cast<int>(row());
  gpu_product(d_x_, in_, r, H, Out::kActivation, d_in_.bf(), s);
  const NormWeight weight = norm(norm_.device.f32());
  qk_norm_rope_write_kv(d_in_.bf(), tokens_, {heads_, kv_heads_, dim_, rotary_, r}, weight, weight,
                        cos_sin_.device.f32(), cache_, 0, d_kv_slots_.get(), s);
  const __nv_bfloat16* k = d_in_.bf() + width;
  if (c_.fresh == 1)
    decode_attention(d_in_.bf(), r,
                     {c_.sequences, d_contexts_.get(), d_block_start_.get(), d_ids_.get()},
                     {heads_, kv_heads_, dim_}, cache_, 0, scale(dim_), d_out_.bf(), s);
  else
    attention_.run(d_in_.bf(), r, cache_, 0, scale(dim_), d_out_.bf(), s, {k, k + kv, r});
  if (next_) multiply_sigmoid(d_out_.bf(), d_in_.bf() + width + 2 * kv, r, tokens_, width, s);
  gpu_product(d_out_, out_, H, width, Out::kResidual, residual_.device.bf(), s);
}

void Layer::gpu_linear_attention(cudaStream_t s) {
  gpu_product(d_x_, in_, delta_.qkvz_cols(), H, Out::kActivation, d_in_.bf(), s);
  gpu_product(d_x_, ba_, delta_.ba_cols(), H, Out::kActivation, d_ba_.bf(), s);
  const GatedDeltaBatch batch{tokens_,
                              c_.sequences,
                              d_query_start_.get(),
                              d_slots_.get(),
                              d_starts_.get(),
                              d_states_.f32(),
                              delta_.state_size(),
                              conv_states_.device.bf(),
                              delta_.conv_state_size(),
                              c_.fresh == 1};
  const GatedDeltaWeights weights{conv_.device.f32(), a_log_.device.f32(), dt_bias_.device.f32(),
                                  delta_norm_.device.f32(), 1e-6f};
  if (gated_delta_takes_decode(batch, delta_)) {
    gated_delta_decode(d_in_.bf(), d_ba_.bf(), batch, delta_, weights, d_out_.bf(), s);
  } else {
    gated_delta_conv(d_in_.bf(), batch, delta_, weights, d_mixed_.bf(), s);
    if (gated_delta_takes_chunked(batch, delta_))
      gated_delta_rule_chunked(d_mixed_.bf(), d_ba_.bf(), batch, delta_, weights, d_out_.bf(), {},
                               d_scratch_.get(), s);
    else
      gated_delta_rule(d_mixed_.bf(), d_ba_.bf(), batch, delta_, weights, d_out_.bf(), s);
    gated_delta_norm(d_out_.bf(), d_in_.bf(), tokens_, delta_, weights, d_out_.bf(), s);
  }
  gpu_product(d_out_, out_, H, out_width(), Out::kResidual, residual_.device.bf(), s);
}

void Layer::gpu_experts(cudaStream_t s) {
  __nv_bfloat16* const residual = residual_.device.bf();
  gpu_product(d_x_, router_, kExperts, H, Out::kFloat, d_logits_.f32(), s);
  const Routing routing = lists_.view();
  route(d_logits_.f32(), routing, tokens_, kExperts, kTopK, true, s);
  if (next_) {
    const int I = shape_.intermediate, in_row = shared_row();
    gpu_product(d_x_, shared_in_, in_row, H, Out::kActivation, d_shared_.bf(), s);
    silu_and_mul(d_shared_.bf(), in_row, tokens_, I, true, d_act_.bf(), s);
    gpu_product(d_act_, shared_down_, H, I, Out::kResidual, residual, s);
  }
  const size_t matrix = sz(int64_t{2} * H * shape_.intermediate);
  const MoeWeights weights{gate_up_.device.bf(), down_.device.bf(), 2 * matrix, matrix,
                           DType::kBf16};
  const NormWeight weight = norm(norm_.device.f32());
  if (moe_takes_grouped(tokens_, shape_)) {
    moe_grouped_experts(d_x_.bf(), tokens_, shape_, weights, routing, d_activation_.bf(), d_y_.bf(),
                        s, {}, /*in_place=*/true);
    moe_grouped_combine_rms_norm(d_y_.bf(), tokens_, shape_, routing, residual, weight, d_x_.bf(),
                                 s);
  } else {
    moe_skinny_gate_up(d_x_.bf(), tokens_, shape_, weights, routing, d_activation_.bf(), s);
    moe_skinny_down(d_activation_.bf(), tokens_, shape_, weights, routing, d_y32_.f32(), s);
    moe_combine_rms_norm(d_y32_.f32(), tokens_, shape_, routing, residual, weight, d_x_.bf(), s);
  }
}

FusedShape Layer::fused_shape() const {
  FusedShape shape;
  shape.hidden = H;
  shape.heads = heads_;
  shape.kv_heads = kv_heads_;
  shape.head_dim = dim_;
  shape.rotary_dim = rotary_;
  shape.gated = shape.one_plus = shape.shared_expert = next_;
  shape.scale = scale(dim_);
  if (c_.kind == Kind::kNextLinear) shape.delta = delta_;
  shape.moe = shape_;
  if (next_) ++shape.moe.experts, ++shape.moe.top_k;
  shape.down_stride = sz(int64_t{2} * H * shape_.intermediate);
  shape.gate_up_stride = 2 * shape.down_stride;
  return shape;
}

// Parts of bf16 arrays one behind the other.
struct Run {
  const Both& from;
  size_t first, count;
};
DeviceBuffer<__nv_bfloat16> joined(const std::vector<Run>& runs) {
  size_t all = 0, at = 0;
  for (const Run& r : runs) all += r.count;
  DeviceBuffer<__nv_bfloat16> to(all);
  for (const Run& r : runs) {
    check(cudaMemcpy(to.get() + at, r.from.device.bf() + r.first, r.count * 2,
                     cudaMemcpyDeviceToDevice),
          "joining");
    at += r.count;
  }
  return to;
}

FusedLayer Layer::fused_layer() {
  const auto whole = [](const Both& b) { return Run{b, 0, b.host.size()}; };
  FusedLayer layer;
  layer.in = in_.device.bf();
  layer.out = out_.device.bf();
  layer.router = router_.device.bf();
  layer.gate_up = gate_up_.device.bf();
  layer.down = down_.device.bf();
  layer.input_norm = layer.post_norm = layer.q_norm = layer.k_norm = norm_.device.f32();
  if (!next_) return layer;
  const size_t gate_up = sz(int64_t{2} * shape_.intermediate * H);
  all_router_ = joined({{shared_in_, gate_up, H}, whole(router_)});
  all_gate_up_ = joined({{shared_in_, 0, gate_up}, whole(gate_up_)});
  all_down_ = joined({whole(shared_down_), whole(down_)});
  layer.router = all_router_.get();
  layer.gate_up = all_gate_up_.get();
  layer.down = all_down_.get();
  if (c_.kind != Kind::kNextLinear) return layer;
  all_in_ = joined({whole(in_), whole(ba_)});
  layer.in = all_in_.get();
  layer.delta = {conv_.device.f32(), a_log_.device.f32(), dt_bias_.device.f32(),
                 delta_norm_.device.f32(), 1e-6f};
  layer.states = d_states_.f32();
  layer.state_stride = delta_.state_size();
  layer.conv_states = conv_states_.device.bf();
  layer.conv_stride = delta_.conv_state_size();
  return layer;
}

void Layer::gpu_layer(cudaStream_t s) {
  __nv_bfloat16* const residual = residual_.device.bf();
  if (c_.fused) {
    FusedBatch batch;
    batch.attention = {c_.sequences, d_contexts_.get(), d_block_start_.get(), d_ids_.get()};
    batch.kv_slots = d_kv_slots_.get();
    batch.cos_sin = cos_sin_.device.f32();
    batch.cache = cache_;
    batch.slots = d_slots_.get();
    batch.starts = d_starts_.get();
    return fused_->run(residual, batch, s);
  }
  const NormWeight weight = norm(norm_.device.f32());
  add_rms_norm(nullptr, residual, tokens_, H, weight, d_x_.bf(), s);
  c_.kind == Kind::kNextLinear ? gpu_linear_attention(s) : gpu_attention(s);
  add_rms_norm(nullptr, residual, tokens_, H, weight, d_x_.bf(), s);
  gpu_experts(s);
}

void Layer::check_layer() {
  cache_.arena = arena_.device.bf();
  if (c_.fused) fused_ = std::make_unique<FusedDecode>(fused_shape(), std::vector{fused_layer()});
  const AttentionBatch batch{c_.sequences,
                             tokens_,
                             tables_.query_start.data(),
                             tables_.block_start.data(),
                             d_query_start_.get(),
                             d_block_start_.get(),
                             d_ids_.get(),
                             d_last_.get(),
                             tables_.contexts.data(),
                             /*dense=*/true};
  if (c_.fresh > 1) attention_.plan(batch, false, nullptr);
  check(cudaDeviceSynchronize(), "planning");
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check(cudaStreamCreate(&stream), "cudaStreamCreate");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  gpu_layer(stream);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  check(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
  check(cudaStreamSynchronize(stream), "running the graph");
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);

  const Tensor want = run_on_cpu();

  // Values of the residual are of about 1 to 3. bf16 rounds each of some ten results in a row by
  // 2^-9 of it, and products carry that on; a token whose last expert is a near tie may take
  // another (of weight 1/8 or so), which few do.
  const Tensor got = residual_.device.back();
  int other_experts = 0;
  for (int t = 0; t < tokens_; ++t) {
    double error = 0, size = 0;
    for (int i = 0; i < H; ++i) {
      const size_t at = sz(int64_t{t} * H + i);
      error += (got[at] - want[at]) * (got[at] - want[at]);
      size += want[at] * want[at];
    }
    const double relative = std::sqrt(error / size);
    ASSERT_LT(relative, 0.25) << "token " << t;
    other_experts += relative > 0.01;
  }
  EXPECT_LE(other_experts, tokens_ / 20 + 1) << "of " << tokens_ << " tokens differ by over 1%";
  check_memories();
}

// What the layer keeps of the sequences. New keys and values are a few values of up to 10, states
// of up to 100, each the sum of some.
void Layer::check_memories() const {
  const auto expect_alike = [](const Tensor& got, const Tensor& want, const char* what) {
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(got[i], want[i], 0.02 * std::abs(want[i]) + 0.05) << what << " at " << i;
  };
  if (c_.kind != Kind::kNextLinear) return expect_alike(arena_.device.back(), arena_.host, "cache");
  expect_alike(transposed(d_states_.back(), 128), states_.host, "states");
  expect_alike(conv_states_.device.back(), conv_states_.host, "inputs of convolutions");
}

class DecoderLayer : public testing::TestWithParam<LayerCase> {};

TEST_P(DecoderLayer, AsAGraphMatchesTheCpu) {
  SKIP_WITHOUT_GPU();
  Layer(GetParam()).check_layer();
}
INSTANTIATE_TEST_SUITE_P(
    Layers, DecoderLayer,
    testing::Values(LayerCase{Kind::kQwen3, 1, 1, 100}, LayerCase{Kind::kQwen3, 16, 1, 77},
                    LayerCase{Kind::kQwen3, 70, 1, 20}, LayerCase{Kind::kQwen3, 1, 300, 0},
                    LayerCase{Kind::kQwen3, 2, 200, 50}, LayerCase{Kind::kNextFull, 3, 1, 60},
                    LayerCase{Kind::kNextFull, 1, 260, 0}, LayerCase{Kind::kNextLinear, 3, 1, 9},
                    LayerCase{Kind::kNextLinear, 2, 150, 0},
                    LayerCase{Kind::kNextLinear, 1, 200, 40}));
INSTANTIATE_TEST_SUITE_P(
    Fused, DecoderLayer,
    testing::Values(
        LayerCase{Kind::kQwen3, 1, 1, 100, true}, LayerCase{Kind::kQwen3, 1, 1, 0, true},
        LayerCase{Kind::kQwen3, 1, 1, 20000, true}, LayerCase{Kind::kQwen3, 4, 1, 77, true},
        LayerCase{Kind::kQwen3, 3, 1, 511, true}, LayerCase{Kind::kQwen3, 2, 1, 40, true, 1, 64},
        LayerCase{Kind::kQwen3, 4, 1, 5, true, 1, 192},
        LayerCase{Kind::kQwen3, 2, 1, 40, true, 1, 384},
        LayerCase{Kind::kQwen3, 3, 1, 5, true, 1, 640},
        LayerCase{Kind::kQwen3, 2, 1, 40, true, 1, 1024},
        LayerCase{Kind::kNextFull, 1, 1, 3000, true}, LayerCase{Kind::kNextFull, 4, 1, 77, true},
        LayerCase{Kind::kNextFull, 1, 1, 0, true, 2},
        LayerCase{Kind::kNextFull, 3, 1, 511, true, 2}, LayerCase{Kind::kNextLinear, 1, 1, 9, true},
        LayerCase{Kind::kNextLinear, 4, 1, 9, true}, LayerCase{Kind::kNextLinear, 3, 1, 0, true},
        LayerCase{Kind::kNextLinear, 2, 1, 9, true}, LayerCase{Kind::kNextLinear, 1, 1, 9, true, 2},
        LayerCase{Kind::kNextLinear, 4, 1, 9, true, 2}));

}  // namespace
}  // namespace vamp::cuda::layer_test
