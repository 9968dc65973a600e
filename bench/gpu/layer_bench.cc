// What whole models would take: every decoder layer and the vocabulary head, random weights, in one
// captured graph, but for embedding and sampling. Prints milliseconds a step, beside what reading
// the same bytes at the memory's measured rate would take.
//
//   gpu_layer_bench decode [account]   Qwen3-30B-A3B
//   gpu_layer_bench prefill            Qwen3-30B-A3B
//   gpu_layer_bench next [account | N] Qwen3-Next-80B-A3B, one of two ranks' shapes and whole
//
// account: also what a step saves without each op. N: layers with experts of their own; as many as
// there is room for, if it is left out.
//
// Last line: one JSON object.
#include <fmt/format.h>

#include <cstdlib>
#include <string>
#include <utility>

#include "gpu/qwen3_next_step.h"
#include "gpu/qwen3_step.h"

using namespace vamp;
using namespace vamp::cuda;

namespace {

std::string json;
void record(const std::string& name, double value) {
  json += fmt::format("{}\"{}\":{:.3f}", json.empty() ? "" : ",", name, value);
}

void report_decode(const std::string& name, double us, double bytes) {
  const double share = bytes / us / kHbmBytesPerUs;
  fmt::print("{:<40} {:>8.3f} ms, {:.0f}% of what HBM allows\n", name, us / 1e3, 100 * share);
  std::fflush(stdout);
  record(name + " ms", us / 1e3);
  record(name + " share", share);
}

void report_prefill(const std::string& name, double us, int tokens) {
  fmt::print("{:<40} {:>8.3f} ms, {:.0f} tokens/s\n", name, us / 1e3, tokens / us * 1e6);
  std::fflush(stdout);
  record(name + " ms", us / 1e3);
}

// What each op adds to a step that goes op by op, on the average over all layers.
template <typename Step>
void account_for(Step& model) {
  const bool fused = std::exchange(model.fused, false);
  const double us = graph_us([&](cudaStream_t s) { model.step(s); }, 7);
  for (int op = 0; op < Step::kNone; ++op) {
    const auto left_out = static_cast<typename Step::Op>(op);
    const double without = graph_us([&](cudaStream_t s) { model.step(s, left_out); }, 7);
    fmt::print("  {:<18} adds {:>7.2f} us a layer\n", Step::op_name(left_out),
               (us - without) / model.layers());
  }
  model.fused = fused;
}

void run_decode(bool account) {
  Qwen3Step model(48, 128 * 4096);
  for (auto [batch, context] : {std::array{1, 4096},
                                {2, 4096},
                                {4, 4096},
                                {8, 4096},
                                {16, 4096},
                                {32, 4096},
                                {64, 4096},
                                {128, 4096},
                                {256, 2048}}) {
    model.set_batch(batch, 1, context);
    const double us = graph_us([&](cudaStream_t s) { model.step(s); });
    report_decode(fmt::format("decode {} x {}", batch, context), us, model.bytes());
    if (batch <= FusedDecode::kMaxTokens) {
      model.fused = false;
      report_decode(fmt::format("decode {} x {}, op by op", batch, context),
                    graph_us([&](cudaStream_t s) { model.step(s); }), model.bytes());
      model.fused = true;
    }
    if (account) account_for(model);
  }
}

void run_prefill() {
  Qwen3Step model(48, 32768);
  for (auto [sequences, fresh, context] :
       {std::array{1, 8192, 8192}, {1, 2048, 30720}, {1, 512, 8192}, {1, 256, 30720}}) {
    model.set_batch(sequences, fresh, context);
    report_prefill(fmt::format("prefill {} at {}", fresh, context),
                   graph_us([&](cudaStream_t s) { model.step(s); }, 5), fresh);
  }
}

void run_next(int ranks, int own_experts, bool account) {
  Qwen3NextStep model(ranks, own_experts, 48 * 4096, 48);
  const std::string name = ranks == 1 ? "Qwen3-Next" : "Qwen3-Next, one of two ranks";
  for (int batch : {1, 4, 16, 48}) {
    model.set_batch(batch, 1, 4096);
    const auto report = [&](const char* how) {
      const double us = graph_us([&](cudaStream_t s) { model.step(s); }, 11);
      report_decode(fmt::format("{}: decode {} x 4096{}", name, batch, how), us, model.bytes());
    };
    report("");
    if (batch <= FusedDecode::kMaxTokens) {
      model.fused = false;
      report(", op by op");
      model.fused = true;
    }
    if (account) account_for(model);
  }
  for (auto [fresh, context] : {std::array{8192, 8192}, {2048, 30720}}) {
    model.set_batch(1, fresh, context);
    report_prefill(fmt::format("{}: prefill {} at {}", name, fresh, context),
                   graph_us([&](cudaStream_t s) { model.step(s); }, 5), fresh);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "decode";
  const std::string more = argc > 2 ? argv[2] : "";
  const bool account = more == "account";
  const int own_experts = what == "next" ? std::atoi(more.c_str()) : 0;
  const bool takes_more = more.empty() || (account && what != "prefill") || own_experts > 0;
  if (what == "decode" && takes_more) {
    run_decode(account);
  } else if (what == "prefill" && takes_more) {
    run_prefill();
  } else if (what == "next" && takes_more) {
    run_next(2, own_experts ? own_experts : 48, account);
    run_next(1, own_experts ? own_experts : 36, account);
  } else {
    fmt::print(stderr,
               "gpu_layer_bench {} {}: it is decode [account], prefill or next [account | N]\n",
               what, more);
    return 2;
  }
  fmt::print("{{{}}}\n", json);
  return 0;
}
