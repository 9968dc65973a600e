// A decode step of Qwen3-30B-A3B but for embedding and sampling: every decoder layer and the
// vocabulary head, random weights, in one captured graph. Prints milliseconds a token for each
// batch, beside what reading the same bytes at the memory's measured rate would take.
//
//   gpu_layer_bench [LAYERS=48 [account]]      account: also what a step saves without each op
//
// Last line: one JSON object {"decode_ms": {"1": ..., ...}, "share_of_hbm": {...}}.
#include <cuda_bf16.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <string>

#include "gpu/gpu_bench.h"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/linear_skinny.h"
#include "kernels/cuda/moe_routing.h"
#include "kernels/cuda/moe_skinny.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/qk_rope_kv.h"

using namespace vamp;
using namespace vamp::cuda;
using bf16 = __nv_bfloat16;

namespace {

constexpr double kHbmBytesPerUs = 4.56e6;  // measured: what reading alone reaches
constexpr int kHidden = 2048, kVocab = 151936, kBlockTokens = 16, kMaxBatch = 16,
              kMaxContext = 4096;
constexpr DecodeShape kHeads{32, 4, 128};
constexpr MoeShape kMoe{128, 8, 2048, 768};
constexpr int kQkv = (32 + 2 * 4) * 128, kAttention = 32 * 128;

enum Op {
  kQkvOp,
  kRopeOp,
  kAttentionOp,
  kOutputOp,
  kNormOp,
  kRouterOp,
  kRouteOp,
  kGateUpOp,
  kDownOp,
  kCombineOp,
  kHeadOp,
  kNone
};
constexpr const char* kOpNames[] = {
    "qkv",     "rope, cache write", "attention", "output projection", "norm", "router",
    "routing", "gate, up",          "down",      "combine, norm",     "head"};

struct Layer {
  DeviceBuffer<bf16> qkv{size_t{kQkv} * kHidden}, o{size_t{kHidden} * kAttention},
      router{size_t{128} * kHidden};
  DeviceBuffer<bf16> gate_up{size_t{128} * 2 * 768 * kHidden}, down{size_t{128} * kHidden * 768};
  explicit Layer(uint64_t seed) {
    for (auto* w : {&qkv, &o, &router, &gate_up, &down})
      fill_normal(w->get(), w->size(), 0.02f, ++seed);
  }
  MoeWeights experts() const {
    return {gate_up.get(), down.get(), size_t{4} * 768 * kHidden, size_t{2} * 768 * kHidden,
            DType::kBf16};
  }
};

class Model {
 public:
  explicit Model(int layers)
      : cache_{nullptr, {layers, kHeads.kv_heads, kHeads.head_dim, kBlockTokens, DType::kBf16}},
        arena_(cache_.layout.block_bytes() * kMaxBatch * (kMaxContext / kBlockTokens)) {
    for (int l = 0; l < layers; ++l) layers_.emplace_back(static_cast<uint64_t>(l) * 8 + 1);
    fill_normal(head_.get(), head_.size(), 0.02f, 999);
    fill_normal(arena_.get(), arena_.size() / 2, 1.0f, 998);
    fill_normal(residual_.get(), residual_.size(), 1.0f, 997);
    fill_normal_f32(norm_.get(), norm_.size(), 1.0f, 996);
    fill_normal_f32(cos_sin_.get(), cos_sin_.size(), 0.7f, 995);
    cache_.arena = arena_.get();
    const int pairs = kMaxBatch * kMoe.top_k;
    routing_.experts = ints_.get();
    routing_.pairs = routing_.experts + pairs;
    routing_.expert_start = routing_.pairs + pairs;
    routing_.num_work = routing_.expert_start + kMoe.experts + 1;
    routing_.weights = weights_.get();
    routing_.work = work_.get();
  }

  void set_batch(int batch, int context) {
    const int blocks = context / kBlockTokens;
    std::vector<int> contexts(batch, context), starts(batch + 1), ids(batch * blocks), slots(batch);
    for (int s = 0; s <= batch; ++s) starts[s] = s * blocks;
    for (int i = 0; i < batch * blocks; ++i)
      ids[i] = static_cast<int>(uint64_t(i) * 7919 % (batch * blocks));
    for (int s = 0; s < batch; ++s)
      slots[s] = ids[(s + 1) * blocks - 1] * kBlockTokens + kBlockTokens - 1;
    contexts_ = DeviceBuffer<int>(contexts);
    starts_ = DeviceBuffer<int>(starts);
    ids_ = DeviceBuffer<int>(ids);
    slots_ = DeviceBuffer<int>(slots);
    batch_ = batch;
  }

  // The step, without the op `left_out` (to see what each adds).
  void step(cudaStream_t s, Op left_out = kNone) {
    const NormWeight norm{norm_.get(), 1e-6f, false};
    const DecodeBatch decode{batch_, contexts_.get(), starts_.get(), ids_.get()};
    bf16 *residual = residual_.get(), *x = x_.get();
    const auto op = [&](Op name, auto&& run) {
      if (name != left_out) run();
    };
    add_rms_norm(nullptr, residual, batch_, kHidden, norm, x, s);
    for (size_t l = 0; l < layers_.size(); ++l) {
      const Layer& w = layers_[l];
      const int layer = static_cast<int>(l);
      op(kQkvOp, [&] {
        linear_skinny(x, w.qkv.get(), nullptr, qkv_.get(), batch_, kQkv, kHidden, false, s);
      });
      op(kRopeOp, [&] {
        qk_norm_rope_write_kv(qkv_.get(), batch_, {kHeads.num_heads, kHeads.kv_heads, 128, 128},
                              norm, norm, cos_sin_.get(), cache_, layer, slots_.get(), s);
      });
      op(kAttentionOp, [&] {
        decode_attention(qkv_.get(), kQkv, decode, kHeads, cache_, layer, 0.088f, attention_.get(),
                         s);
      });
      op(kOutputOp, [&] {
        linear_skinny(attention_.get(), w.o.get(), nullptr, residual, batch_, kHidden, kAttention,
                      true, s);
      });
      op(kNormOp, [&] { add_rms_norm(nullptr, residual, batch_, kHidden, norm, x, s); });
      op(kRouterOp, [&] {
        linear_skinny_f32(x, w.router.get(), logits_.get(), batch_, kMoe.experts, kHidden, s);
      });
      op(kRouteOp,
         [&] { route(logits_.get(), routing_, batch_, kMoe.experts, kMoe.top_k, true, s); });
      op(kGateUpOp,
         [&] { moe_skinny_gate_up(x, batch_, kMoe, w.experts(), routing_, activation_.get(), s); });
      op(kDownOp, [&] {
        moe_skinny_down(activation_.get(), batch_, kMoe, w.experts(), routing_, y_.get(), s);
      });
      op(kCombineOp,
         [&] { moe_combine_rms_norm(y_.get(), batch_, kMoe, routing_, residual, norm, x, s); });
    }
    op(kHeadOp,
       [&] { linear_skinny_f32(x, head_.get(), vocab_.get(), batch_, kVocab, kHidden, s); });
  }

  // Bytes that a step must read: dense weights, the experts that its tokens chose (as the last
  // layer's routing had it), and the context.
  double bytes(int context) const {
    std::vector<int> start(kMoe.experts + 1);
    check(cudaMemcpy(start.data(), routing_.expert_start, start.size() * 4, cudaMemcpyDeviceToHost),
          "copy");
    double experts = 0;
    for (int e = 0; e < kMoe.experts; ++e) experts += start[e + 1] > start[e];
    const double layer = 2.0 * (kQkv * kHidden + kHidden * kAttention + 128 * kHidden) +
                         experts * 6.0 * 768 * kHidden +
                         batch_ * static_cast<double>(context) * 4 * 128 * 4;
    return layer * static_cast<double>(layers_.size()) + 2.0 * kVocab * kHidden;
  }

 private:
  std::vector<Layer> layers_;
  KvCache cache_;
  DeviceBuffer<char> arena_;
  DeviceBuffer<bf16> head_{size_t{kVocab} * kHidden};
  DeviceBuffer<bf16> residual_{kMaxBatch * kHidden}, x_{kMaxBatch * kHidden},
      qkv_{kMaxBatch * kQkv}, attention_{kMaxBatch * kAttention}, activation_{kMaxBatch * 8 * 768};
  DeviceBuffer<float> y_{kMaxBatch * 8 * kHidden}, logits_{kMaxBatch * 128},
      vocab_{size_t{kMaxBatch} * kVocab}, norm_{kHidden}, cos_sin_{kMaxBatch * 128},
      weights_{kMaxBatch * 8};
  DeviceBuffer<int> ints_{2 * kMaxBatch * 8 + 128 + 2}, contexts_, starts_, ids_, slots_;
  DeviceBuffer<WorkItem> work_{static_cast<size_t>(max_work_items(kMaxBatch, kMoe))};
  Routing routing_;
  int batch_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  const int layers = argc > 1 ? std::atoi(argv[1]) : 48;
  const bool account = argc > 2 && argv[2][0] == 'a';
  Model model(layers);
  std::string times, shares;
  for (int batch : {1, 2, 4, 8, 16}) {
    model.set_batch(batch, kMaxContext);
    const double us = graph_us([&](cudaStream_t s) { model.step(s); });
    const double share = model.bytes(kMaxContext) / us / kHbmBytesPerUs;
    fmt::print("decode {:>3} x 4k: {:.3f} ms, {:.0f}% of what HBM allows\n", batch, us / 1e3,
               100 * share);
    for (int op = 0; account && op < kNone; ++op) {
      const double without =
          graph_us([&](cudaStream_t s) { model.step(s, static_cast<Op>(op)); }, 9);
      fmt::print("  {:<18} adds {:>6.2f} us a layer\n", kOpNames[op], (us - without) / layers);
    }
    std::fflush(stdout);
    times += fmt::format("{}\"{}\":{:.3f}", times.empty() ? "" : ",", batch, us / 1e3);
    shares += fmt::format("{}\"{}\":{:.3f}", shares.empty() ? "" : ",", batch, share);
  }
  fmt::print("{{\"decode_ms\":{{{}}},\"share_of_hbm\":{{{}}}}}\n", times, shares);
  return 0;
}
