// What large steps of Qwen3-30B-A3B take: prefill chunks and big decode batches, random weights.
//
//   gpu_prefill_bench ops [LAYERS=8]     each op alone, over distinct layers
//   gpu_prefill_bench layers [LAYERS=48] every decoder layer and the vocabulary head, one after the
//                                        other: tokens a second, milliseconds a step
//
// Last line: one JSON object.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "gpu/gpu_bench.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/gated_delta.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/moe_grouped.h"
#include "kernels/cuda/moe_routing.h"
#include "kernels/cuda/moe_skinny.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/qk_rope_kv.h"
#include "kernels/cuda/sampler.h"

using namespace vamp;
using namespace vamp::cuda;
using bf16 = __nv_bfloat16;

namespace {

constexpr double kHbmBytesPerUs = 4.56e6;  // measured: what reading alone reaches
constexpr int kHidden = 2048, kVocab = 151936, kBlockTokens = 16, kMaxTokens = 8192;
constexpr int kHeads = 32, kKvHeads = 4, kHeadDim = 128;
constexpr int kQkv = (kHeads + 2 * kKvHeads) * kHeadDim, kAttention = kHeads * kHeadDim;
constexpr MoeShape kMoe{128, 8, kHidden, 768};
constexpr float kScale = 0.088f;

struct Layer {
  DeviceBuffer<bf16> qkv{size_t{kQkv} * kHidden}, o{size_t{kHidden} * kAttention},
      router{size_t{128} * kHidden}, gate_up{size_t{128} * 2 * 768 * kHidden},
      down{size_t{128} * kHidden * 768};
  explicit Layer(uint64_t seed) {
    for (auto* w : {&qkv, &o, &router, &gate_up, &down})
      fill_normal(w->get(), w->size(), 0.02f, ++seed);
  }
  MoeWeights experts() const {
    return {gate_up.get(), down.get(), size_t{4} * 768 * kHidden, size_t{2} * 768 * kHidden,
            DType::kBf16};
  }
};

// Sequences of equal context that all take `fresh` new tokens, and everything a step writes.
class Bench {
 public:
  Bench(int layers, int kv_tokens) : kv_tokens_(kv_tokens) {
    for (int l = 0; l < layers; ++l) layers_.emplace_back(static_cast<uint64_t>(l) * 8 + 1);
    cache_.layout = {layers, kKvHeads, kHeadDim, kBlockTokens, DType::kBf16};
    arena_ = DeviceBuffer<char>(cache_.layout.block_bytes() *
                                static_cast<size_t>(kv_tokens / kBlockTokens));
    cache_.arena = arena_.get();
    fill_normal(arena_.get(), arena_.size() / 2, 1.0f, 998);
    fill_normal(head_.get(), head_.size(), 0.02f, 999);
    fill_normal(residual_.get(), residual_.size(), 1.0f, 997);
    fill_normal(x_.get(), x_.size(), 1.0f, 994);
    fill_normal_f32(norm_.get(), norm_.size(), 1.0f, 996);
    fill_normal_f32(logits_.get(), logits_.size(), 1.0f, 5);
    fill_normal_f32(cos_sin_.get(), cos_sin_.size(), 0.7f, 995);
    const int pairs = kMaxTokens * kMoe.top_k;
    routing_.experts = ints_.get();
    routing_.pairs = routing_.experts + pairs;
    routing_.expert_start = routing_.pairs + pairs;
    routing_.num_work = routing_.expert_start + kMoe.experts + 1;
    routing_.weights = weights_.get();
    routing_.work = work_.get();
    tune();
  }

  void set_batch(int sequences, int fresh, int context) {
    const int blocks = context / kBlockTokens, all = sequences * blocks;
    VAMP_CHECK(all * kBlockTokens <= kv_tokens_ && sequences * fresh <= kMaxTokens, "too large");
    std::vector<int> ids(static_cast<size_t>(all)), slots;
    query_start_h_.clear();
    block_start_h_.clear();
    for (int s = 0; s <= sequences; ++s) {
      query_start_h_.push_back(s * fresh);
      block_start_h_.push_back(s * blocks);
    }
    for (int i = 0; i < all; ++i)
      ids[static_cast<size_t>(i)] = static_cast<int>(uint64_t(i) * 7919 % uint64_t(all));
    for (int s = 0; s < sequences; ++s) {
      for (int p = context - fresh; p < context; ++p)
        slots.push_back(ids[static_cast<size_t>(s * blocks + p / kBlockTokens)] * kBlockTokens +
                        p % kBlockTokens);
    }
    contexts_h_.assign(static_cast<size_t>(sequences), context);
    last_ = DeviceBuffer<int>(std::vector<int>(static_cast<size_t>(sequences), kBlockTokens));
    contexts_ = DeviceBuffer<int>(contexts_h_);
    query_start_ = DeviceBuffer<int>(query_start_h_);
    block_start_ = DeviceBuffer<int>(block_start_h_);
    ids_ = DeviceBuffer<int>(ids);
    slots_ = DeviceBuffer<int>(slots);
    sequences_ = sequences;
    tokens_ = sequences * fresh;
    const AttentionBatch batch{sequences,
                               tokens_,
                               query_start_h_.data(),
                               block_start_h_.data(),
                               query_start_.get(),
                               block_start_.get(),
                               ids_.get(),
                               last_.get(),
                               contexts_h_.data()};
    op_.plan(batch, false, nullptr);
    check(cudaDeviceSynchronize(), "planning");
  }
  void set_tokens(int tokens) { tokens_ = tokens; }

  void linear(const bf16* x, const DeviceBuffer<bf16>& w, int N, int K, LinearPart::Out kind,
              void* out, cudaStream_t s) {
    const LinearPart part{{w.get(), DType::kBf16, N, K}, nullptr, out, N, kind};
    linear_.run(x, K, tokens_, {&part, 1}, s);
  }
  void qkv(int l, cudaStream_t s) {
    linear(x_.get(), at(l).qkv, kQkv, kHidden, LinearPart::Out::kActivation, qkv_.get(), s);
  }
  void output(int l, cudaStream_t s) {
    linear(attention_.get(), at(l).o, kHidden, kAttention, LinearPart::Out::kResidual,
           residual_.get(), s);
  }
  void router(int l, cudaStream_t s) {
    linear(x_.get(), at(l).router, kMoe.experts, kHidden, LinearPart::Out::kFloat,
           router_logits_.get(), s);
  }
  // From logits of independent tokens, other ones in each layer: those that random weights give
  // grow alike from layer to layer.
  void route(int l, cudaStream_t s) {
    cuda::route(logits_.get() + static_cast<size_t>(l) * 128 * 128, routing_, tokens_, kMoe.experts,
                kMoe.top_k, true, s);
  }
  void write_kv(int l, cudaStream_t s) {
    qk_norm_rope_write_kv(qkv_.get(), tokens_, {kHeads, kKvHeads, kHeadDim, kHeadDim}, norm(),
                          norm(), cos_sin_.get(), cache_, l, slots_.get(), s);
  }
  void attention(int l, cudaStream_t s) {
    if (tokens_ == sequences_) {
      decode_attention(qkv_.get(), kQkv,
                       {sequences_, contexts_.get(), block_start_.get(), ids_.get()},
                       {kHeads, kKvHeads, kHeadDim}, cache_, l, kScale, attention_.get(), s);
    } else {
      op_.run(qkv_.get(), kQkv, cache_, l, kScale, attention_.get(), s);
    }
  }
  void fa2_or_3(int l, cudaStream_t s) {
    op_.run(qkv_.get(), kQkv, cache_, l, kScale, attention_.get(), s);
  }
  void skinny_gate_up(int l, cudaStream_t s) {
    moe_skinny_gate_up(x_.get(), tokens_, kMoe, at(l).experts(), routing_, activation_.get(), s);
  }
  void skinny_down(int l, cudaStream_t s) {
    moe_skinny_down(activation_.get(), tokens_, kMoe, at(l).experts(), routing_, y32_.get(), s);
  }
  void grouped_gate_up(int l, cudaStream_t s) {
    moe_grouped_gate_up(x_.get(), tokens_, kMoe, at(l).experts(), routing_, activation_.get(), s);
  }
  void grouped_down(int l, cudaStream_t s) {
    moe_grouped_down(activation_.get(), tokens_, kMoe, at(l).experts(), routing_, y_.get(), s);
  }
  void combine(cudaStream_t s) {
    moe_grouped_combine_rms_norm(y_.get(), tokens_, kMoe, routing_, residual_.get(), norm(),
                                 x_.get(), s);
  }
  void add_norm(cudaStream_t s) {
    add_rms_norm(nullptr, residual_.get(), tokens_, kHidden, norm(), x_.get(), s);
  }

  void step(cudaStream_t s) {
    add_norm(s);
    for (int l = 0; l < layers(); ++l) {
      qkv(l, s);
      write_kv(l, s);
      attention(l, s);
      output(l, s);
      add_norm(s);
      router(l, s);
      route(l, s);
      const bool grouped = experts == Experts::kBest ? moe_takes_grouped(tokens_, kMoe)
                                                     : experts == Experts::kGrouped;
      if (!grouped) {
        skinny_gate_up(l, s);
        skinny_down(l, s);
        moe_combine_rms_norm(y32_.get(), tokens_, kMoe, routing_, residual_.get(), norm(), x_.get(),
                             s);
      } else {
        grouped_gate_up(l, s);
        grouped_down(l, s);
        combine(s);
      }
    }
    const LinearPart part{{head_.get(), DType::kBf16, kVocab, kHidden},
                          nullptr,
                          vocab_.get(),
                          kVocab,
                          LinearPart::Out::kFloat};
    linear_.run(x_.get(), kHidden, sequences_, {&part, 1}, s);
  }

  int layers() const { return static_cast<int>(layers_.size()); }
  int tokens() const { return tokens_; }
  double active_experts() const {
    std::vector<int> start(kMoe.experts + 1);
    check(cudaMemcpy(start.data(), routing_.expert_start, start.size() * 4, cudaMemcpyDeviceToHost),
          "copy");
    double active = 0;
    for (size_t e = 0; e < kMoe.experts; ++e) active += start[e + 1] > start[e];
    return active;
  }

  enum class Experts { kBest, kSkinny, kGrouped } experts = Experts::kBest;

 private:
  const Layer& at(int l) const { return layers_[static_cast<size_t>(l)]; }
  NormWeight norm() const { return {norm_.get(), 1e-6f, false}; }
  void tune() {
    const Layer& w = layers_.front();
    const auto part = [](const DeviceBuffer<bf16>& m, int N, int K, LinearPart::Out kind,
                         void* out) {
      return LinearPart{{m.get(), DType::kBf16, N, K}, nullptr, out, N, kind};
    };
    using Out = LinearPart::Out;
    const LinearPart qkv = part(w.qkv, kQkv, kHidden, Out::kActivation, qkv_.get()),
                     o = part(w.o, kHidden, kAttention, Out::kResidual, residual_.get()),
                     router =
                         part(w.router, kMoe.experts, kHidden, Out::kFloat, router_logits_.get());
    linear_.tune(x_.get(), kHidden, kMaxTokens, {&qkv, 1});
    linear_.tune(attention_.get(), kAttention, kMaxTokens, {&o, 1});
    linear_.tune(x_.get(), kHidden, kMaxTokens, {&router, 1});
    const LinearPart head = part(head_, kVocab, kHidden, Out::kFloat, vocab_.get());
    linear_.tune(x_.get(), kHidden, 256, {&head, 1});
    fill_normal(residual_.get(), residual_.size(), 1.0f, 997);
  }

  int kv_tokens_;
  std::vector<Layer> layers_;
  KvCache cache_;
  DeviceBuffer<char> arena_;
  Linear linear_;
  Attention op_{{kHeads, kKvHeads, kHeadDim}, kBlockTokens};
  DeviceBuffer<bf16> head_{size_t{kVocab} * kHidden}, residual_{kMaxTokens * kHidden},
      x_{kMaxTokens * kHidden}, qkv_{kMaxTokens * kQkv}, attention_{kMaxTokens * kAttention},
      activation_{size_t{kMaxTokens} * 8 * 768}, y_{size_t{kMaxTokens} * 8 * kHidden};
  DeviceBuffer<float> y32_{size_t{256} * 8 * kHidden}, logits_{(kMaxTokens + 48 * 128) * 128},
      router_logits_{kMaxTokens * 128}, vocab_{size_t{256} * kVocab}, norm_{kHidden},
      cos_sin_{kMaxTokens * 128}, weights_{kMaxTokens * 8};
  DeviceBuffer<int> ints_{2 * kMaxTokens * 8 + 128 + 2}, contexts_, query_start_, block_start_,
      ids_, slots_, last_;
  DeviceBuffer<WorkItem> work_{static_cast<size_t>(max_work_items(kMaxTokens, kMoe))};
  std::vector<int> query_start_h_, block_start_h_, contexts_h_;
  Routing routing_;
  int sequences_ = 0, tokens_ = 0;
};

std::string json;
void report(const std::string& name, int tokens, double us, double flops, double bytes) {
  fmt::print("{:<28} {:>5} tokens {:>9.2f} us {:>6.0f} TFLOP/s {:>5.1f}% of HBM\n", name, tokens,
             us, flops / us / 1e6, 100 * bytes / us / kHbmBytesPerUs);
  std::fflush(stdout);
  json += fmt::format("{}\"{} {}\":{:.2f}", json.empty() ? "" : ",", name, tokens, us);
}

void run_ops(int layers) {
  Bench b(layers, 8 * 4096);
  const auto time = [&](auto&& op) {
    return graph_us(
               [&](cudaStream_t s) {
                 for (int l = 0; l < layers; ++l) op(l, s);
               },
               11) /
           layers;
  };
  for (int tokens : {32, 64, 128, 256, 512, 1024, 2048, 4096, 8192}) {
    b.set_tokens(tokens);
    const double t = tokens;
    const auto dense = [&](const char* name, double N, double K, auto&& op) {
      report(name, tokens, time(op), 2 * t * N * K, 2 * N * K);
    };
    dense("qkv", kQkv, kHidden, [&](int l, cudaStream_t s) { b.qkv(l, s); });
    dense("output", kHidden, kAttention, [&](int l, cudaStream_t s) { b.output(l, s); });
    dense("router", 128, kHidden, [&](int l, cudaStream_t s) { b.router(l, s); });
    report("route", tokens, time([&](int l, cudaStream_t s) { b.route(l, s); }), 0, t * 512);
    const double active = b.active_experts(), half = 2.0 * 768 * kHidden;
    if (tokens <= 256) {
      report("skinny gate_up", tokens, time([&](int l, cudaStream_t s) { b.skinny_gate_up(l, s); }),
             t * 8 * half * 2, active * half * 2);
      report("skinny down", tokens, time([&](int l, cudaStream_t s) { b.skinny_down(l, s); }),
             t * 8 * half, active * half);
    }
    report("grouped gate_up", tokens, time([&](int l, cudaStream_t s) { b.grouped_gate_up(l, s); }),
           t * 8 * half * 2, active * half * 2);
    report("grouped down", tokens, time([&](int l, cudaStream_t s) { b.grouped_down(l, s); }),
           t * 8 * half, active * half);
    report("combine", tokens, time([&](int, cudaStream_t s) { b.combine(s); }), 0, t * 9 * 4096);
    report("norm", tokens, time([&](int, cudaStream_t s) { b.add_norm(s); }), 0, t * 2 * 4096);
  }
  for (auto [sequences, fresh, context] :
       {std::array{1, 8192, 8192}, {1, 2048, 30720}, {1, 2048, 2048}, {8, 256, 4096}}) {
    b.set_batch(sequences, fresh, context);
    const double pairs = double(sequences) * (double(fresh) * context - double(fresh) * fresh / 2);
    report(fmt::format("attention @{}", context), b.tokens(),
           time([&](int l, cudaStream_t s) { b.fa2_or_3(l, s); }), 4 * pairs * kAttention, 0);
    report("rope, write kv", b.tokens(), time([&](int l, cudaStream_t s) { b.write_kv(l, s); }), 0,
           2.0 * b.tokens() * kQkv * 2);
  }
}

// Sampling of `rows` rows with parameters of each kind, host work included: median microseconds.
void run_sampler() {
  constexpr int kMost = 256;
  DeviceBuffer<float> logits(size_t{kMost} * kVocab);
  fill_normal_f32(logits.get(), logits.size(), 4.0f, 7);
  Sampler sampler(kMost, kVocab);
  const std::pair<const char*, SampleParams> kinds[] = {
      {"greedy", {}},
      {"temperature", {.temperature = 1.0f}},
      {"top-k, top-p", {.temperature = 1.0f, .top_p = 0.9f, .top_k = 50}},
      {"top-p", {.temperature = 1.0f, .top_p = 0.95f}},
      {"greedy, 20 logprobs", {.logprobs = 20}}};
  for (const auto& [name, kind] : kinds) {
    for (int rows : {1, 16, 64, 256}) {
      std::vector<SampleParams> params(static_cast<size_t>(rows), kind);
      for (size_t r = 0; r < params.size(); ++r) params[r].seed = r;
      std::vector<Sample> out(params.size());
      std::vector<double> us;
      for (int i = 0; i < 21; ++i) {
        const auto begin = std::chrono::steady_clock::now();
        sampler.launch(logits.get(), params, {}, nullptr);
        sampler.results(out);
        us.push_back(
            std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
                .count());
      }
      std::nth_element(us.begin(), us.begin() + 10, us.end());
      report(fmt::format("sample, {}", name), rows, us[10], 0, rows * 4.0 * kVocab);
    }
  }
}

// Qwen3-Next's Gated DeltaNet, one layer: decode of 1 to 64 sequences, prefill of one and of four.
void run_gated_delta() {
  const GatedDeltaShape shape{16, 32, 128, 4};
  constexpr int kSlots = 64;
  const size_t tokens_max = kMaxTokens;
  DeviceBuffer<bf16> qkvz(tokens_max * size_t(shape.qkvz_cols())),
      ba(tokens_max * size_t(shape.ba_cols())), convolved(tokens_max * size_t(shape.channels())),
      o(tokens_max * size_t(shape.value_heads * shape.head_dim)),
      conv_states(size_t(kSlots * shape.conv_state_size()));
  DeviceBuffer<float> states(size_t(kSlots * shape.state_size())),
      conv(size_t(shape.channels() * 4)), a_log(32), dt_bias(32), norm(128);
  fill_normal(qkvz.get(), qkvz.size(), 1.0f, 1);
  fill_normal(ba.get(), ba.size(), 1.0f, 2);
  for (auto* w : {&states, &conv, &a_log, &dt_bias, &norm})
    fill_normal_f32(w->get(), w->size(), 0.3f, 3);
  const GatedDeltaWeights weights{conv.get(), a_log.get(), dt_bias.get(), norm.get(), 1e-6f};
  for (auto [sequences, fresh] : {std::array{1, 1}, {16, 1}, {64, 1}, {1, 8192}, {4, 2048}}) {
    const auto count = static_cast<size_t>(sequences);
    std::vector<int> starts(count + 1), slots(count), begins(count, 0);
    for (size_t i = 0; i <= count; ++i) starts[i] = static_cast<int>(i) * fresh;
    for (size_t i = 0; i < count; ++i) slots[i] = static_cast<int>(i);
    const DeviceBuffer<int> dstarts(starts), dslots(slots), dbegins(begins);
    const int tokens = sequences * fresh;
    const GatedDeltaBatch batch{tokens,
                                sequences,
                                dstarts.get(),
                                dslots.get(),
                                dbegins.get(),
                                states.get(),
                                shape.state_size(),
                                conv_states.get(),
                                shape.conv_state_size(),
                                fresh == 1};
    const std::string name = fmt::format("{} x {}", sequences, fresh);
    const double state_bytes = 8.0 * double(shape.state_size()) * sequences;
    report("conv, " + name, tokens, graph_us([&](cudaStream_t s) {
             gated_delta_conv(qkvz.get(), batch, shape, weights, convolved.get(), s);
           }),
           0, tokens * 2.0 * shape.channels() * 2);
    report("delta rule, " + name, tokens, graph_us([&](cudaStream_t s) {
             gated_delta_rule(convolved.get(), ba.get(), batch, shape, weights, o.get(), s);
           }),
           0, state_bytes + tokens * 2.0 * (shape.channels() + 4096));
    report("gated norm, " + name, tokens, graph_us([&](cudaStream_t s) {
             gated_delta_norm(o.get(), qkvz.get(), tokens, shape, weights, o.get(), s);
           }),
           0, tokens * 3.0 * 4096 * 2);
  }
}

void run_layers(int layers) {
  Bench b(layers, 128 * 4096);
  for (auto [sequences, fresh, context] :
       {std::array{1, 8192, 8192}, {1, 2048, 30720}, {1, 512, 8192}, {1, 256, 30720}}) {
    b.set_batch(sequences, fresh, context);
    const double us = graph_us([&](cudaStream_t s) { b.step(s); }, 5);
    fmt::print("prefill {:>5} tokens, context {:>6}: {:>8.3f} ms, {:.0f} tokens/s\n", fresh,
               context, us / 1e3, fresh / us * 1e6);
    json += fmt::format("{}\"prefill {}@{}\":{:.3f}", json.empty() ? "" : ",", fresh, context,
                        us / 1e3);
    std::fflush(stdout);
  }
  for (auto [batch, context] : {std::array{32, 4096}, {64, 4096}, {128, 4096}, {256, 2048}}) {
    b.set_batch(batch, 1, context);
    for (const bool skinny : {false, true}) {
      b.experts = skinny ? Bench::Experts::kSkinny : Bench::Experts::kGrouped;
      const double us = graph_us([&](cudaStream_t s) { b.step(s); }, 9);
      const double bytes = layers * (2.0 * (kQkv * kHidden + kHidden * kAttention + 128 * kHidden) +
                                     b.active_experts() * 6.0 * 768 * kHidden +
                                     double(batch) * context * 4 * 128 * 4) +
                           2.0 * kVocab * kHidden;
      fmt::print("decode {:>3} x {}, experts {}: {:.3f} ms, {:.0f}% of what HBM allows\n", batch,
                 context, skinny ? "skinny" : "grouped", us / 1e3,
                 100 * bytes / us / kHbmBytesPerUs);
      json += fmt::format(",\"decode {}x{} {}\":{:.3f}", batch, context,
                          skinny ? "skinny" : "grouped", us / 1e3);
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool whole = argc > 1 && std::strcmp(argv[1], "layers") == 0;
  const int layers = argc > 2 ? std::atoi(argv[2]) : whole ? 48 : 8;
  if (whole) {
    run_layers(layers);
  } else {
    run_ops(layers);
    run_sampler();
    run_gated_delta();
  }
  fmt::print("{{{}}}\n", json);
  return 0;
}
