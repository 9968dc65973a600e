// Each op of large steps alone, at the shapes of Qwen3-30B-A3B and Qwen3-Next-80B-A3B, over
// distinct layers in a captured graph.
//
//   gpu_large_ops_bench [LAYERS=8]
//
// Last line: one JSON object.
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string>

#include "gpu/qwen3_step.h"
#include "kernels/cuda/gated_delta.h"
#include "kernels/cuda/gated_delta_chunked.h"
#include "kernels/cuda/sampler.h"

using namespace vamp;
using namespace vamp::cuda;
using bf16 = __nv_bfloat16;

namespace {

constexpr int kMaxTokens = Qwen3Step::kMaxTokens, kVocab = Qwen3Step::kVocab;

std::string json;
void report(const std::string& name, int tokens, double us, double flops, double bytes) {
  fmt::print("{:<28} {:>5} tokens {:>9.2f} us {:>6.0f} TFLOP/s {:>5.1f}% of HBM\n", name, tokens,
             us, flops / us / 1e6, 100 * bytes / us / kHbmBytesPerUs);
  std::fflush(stdout);
  json += fmt::format("{}\"{} {}\":{:.2f}", json.empty() ? "" : ",", name, tokens, us);
}

void run_ops(int layers) {
  using Step = Qwen3Step;
  Step model(layers, 8 * 4096);
  const auto time = [&](Step::Op op) {
    return graph_us(
               [&](cudaStream_t s) {
                 for (int l = 0; l < layers; ++l) model.run(op, l, s);
               },
               11) /
           layers;
  };
  const double H = Step::kHidden;
  for (int tokens : {16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192}) {
    model.set_tokens(tokens);
    const double t = tokens;
    const auto dense = [&](Step::Op op, double N, double K) {
      report(Step::op_name(op), tokens, time(op), 2 * t * N * K, 2 * N * K);
    };
    dense(Step::kQkvOp, Step::kQkv, H);
    dense(Step::kOutputOp, H, Step::kAttention);
    dense(Step::kRouterOp, 128, H);
    report("routing", tokens, time(Step::kRouteOp), 0, t * 512);
    const double active = model.moe().active(), expert = 3 * 2.0 * 768 * H;
    for (const auto kernels : {ExpertKernels::kSkinny, ExpertKernels::kGrouped}) {
      const bool skinny = kernels == ExpertKernels::kSkinny;
      if (skinny && tokens > 256) continue;
      model.moe().kernels = kernels;
      report(skinny ? "experts, skinny" : "experts, grouped", tokens, time(Step::kExpertsOp),
             t * 8 * expert, active * expert);
    }
    report("combine, norm", tokens, time(Step::kCombineOp), 0, t * 9 * 4096);
    report("norm", tokens, time(Step::kNormOp), 0, t * 2 * 4096);
  }
  for (auto [sequences, fresh, context] :
       {std::array{1, 8192, 8192}, {4, 2048, 2048}, {1, 2048, 30720}, {8, 256, 4096}}) {
    model.set_batch(sequences, fresh, context);
    const double pairs = double(sequences) * (double(fresh) * context - double(fresh) * fresh / 2);
    report(fmt::format("attention @{}", context), model.tokens(), time(Step::kAttentionOp),
           4 * pairs * Step::kAttention, 0);
    report("rope, write kv", model.tokens(), time(Step::kRopeOp), 0,
           2.0 * model.tokens() * Step::kQkv * 2);
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
    if (gated_delta_takes_chunked(batch, shape)) {
      DeviceBuffer<char> scratch(gated_delta_chunked_scratch_bytes(tokens, sequences, shape));
      report("chunked delta rule, " + name, tokens, graph_us([&](cudaStream_t s) {
               gated_delta_rule_chunked(convolved.get(), ba.get(), batch, shape, weights, o.get(),
                                        {}, scratch.get(), s);
             }),
             0, state_bytes + tokens * 2.0 * (shape.channels() + 4096));
    }
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

}  // namespace

int main(int argc, char** argv) {
  run_ops(argc > 1 ? std::atoi(argv[1]) : 8);
  run_sampler();
  run_gated_delta();
  fmt::print("{{{}}}\n", json);
  return 0;
}
