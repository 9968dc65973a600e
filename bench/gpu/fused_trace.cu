// Where a layer of the fused decode step spends its time: when the blocks pass which point of it,
// in microseconds from the end of the layer in front (its residual told by the last block), on the
// average over layers. First, middle and last block.
//
//   gpu_fused_trace [qwen3 | next | rank] [sequences]   Qwen3-30B-A3B, Qwen3-Next-80B-A3B, one of
//   two ranks of it; contexts of 4k
//
// The kernel is compiled here once more, with what writes the times down.
#define VAMP_FUSED_TRACE
#include <fmt/format.h>

#include <memory>
#include <string>

#include "gpu/qwen3_next_step.h"
#include "gpu/qwen3_step.h"
#include "kernels/cuda/fused_decode.cu"

using namespace vamp;
using namespace vamp::cuda;

namespace {

constexpr const char* kNames[] = {"input: residual arrived",
                                  "normed",
                                  "multiplied",
                                  "told",
                                  "attention: piece told",
                                  "pieces arrived",
                                  "mixer's output told",
                                  "output: mixer's arrived",
                                  "multiplied",
                                  "residual told",
                                  "router: residual arrived",
                                  "normed",
                                  "multiplied",
                                  "logits told",
                                  "choice: logits arrived",
                                  "chosen",
                                  "gate and up: multiplied",
                                  "activations told",
                                  "down: multiplied",
                                  "residual told"};
static_assert(std::size(kNames) == fused::kTracePoints);

using Times = std::array<std::array<uint32_t, fused::kTraceBlocks>, fused::kTracePoints>;

std::vector<Times> read_times() {
  std::vector<Times> times(fused::kTraceLayers);
  check(cudaMemcpyFromSymbol(times.data(), fused::trace_times, sizeof(fused::trace_times)),
        "reading the times");
  return times;
}

// `is_of`: whether layer l is one of those to average over.
template <typename F>
void print_layers(const char* title, const std::vector<Times>& times, int layers, int blocks,
                  bool attention, F&& is_of) {
  fmt::print("{}\n", title);
  const auto sorted = [&](int l, int point) {
    const auto& of = times[static_cast<size_t>(l)][static_cast<size_t>(point)];
    std::vector<uint32_t> t(of.begin(), of.begin() + blocks);
    std::erase(t, 0u);  // not passed by every block
    std::sort(t.begin(), t.end());
    return t;
  };
  for (int point = 0; point < fused::kTracePoints; ++point) {
    if (!attention && (point == fused::kPieceTold || point == fused::kPiecesArrived)) continue;
    double first = 0, middle = 0, last = 0;
    int count = 0;
    for (int l = 2; l < layers; ++l) {  // the first ones begin differently
      if (!is_of(l)) continue;
      const std::vector<uint32_t> t = sorted(l, point), before = sorted(l - 1, fused::kEndTold);
      if (t.empty() || before.empty()) continue;
      const auto since = [&](uint32_t time) { return double(int32_t(time - before.back())); };
      first += since(t.front());
      middle += since(t[t.size() / 2]);
      last += since(t.back());
      ++count;
    }
    if (count > 0)
      fmt::print("  {:<26} {:>7.2f} {:>7.2f} {:>7.2f}\n", kNames[point], first / count / 1e3,
                 middle / count / 1e3, last / count / 1e3);
  }
}

template <typename Step>
void time_step(Step& model, int sequences) {
  model.set_batch(sequences, 1, 4096);
  const double us = graph_us([&](cudaStream_t s) { model.step(s); }, 15);
  fmt::print("a step of {} sequences with this: {:.3f} ms\n", sequences, us / 1e3);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "qwen3";
  const int sequences = argc > 2 ? std::atoi(argv[2]) : 1;
  if ((what != "qwen3" && what != "next" && what != "rank") || sequences < 1 ||
      sequences > FusedDecode::kMaxTokens) {
    fmt::print(stderr, "gpu_fused_trace {} {}: it is qwen3, next or rank, and 1 to {} sequences\n",
               what, argc > 2 ? argv[2] : "", FusedDecode::kMaxTokens);
    return 2;
  }
  const int blocks = std::min(fused::num_blocks(), fused::kTraceBlocks);
  if (what == "qwen3") {
    Qwen3Step model(32, FusedDecode::kMaxTokens * 4096);
    time_step(model, sequences);
    print_layers("us from the end of the layer in front", read_times(), model.layers(), blocks,
                 true, [](int) { return true; });
  } else {
    Qwen3NextStep model(what == "next" ? 1 : 2, 8, FusedDecode::kMaxTokens * 4096,
                        FusedDecode::kMaxTokens);
    time_step(model, sequences);
    const std::vector<Times> times = read_times();
    const auto is_full = [](int l) {
      return l % Qwen3NextStep::kFullEvery == Qwen3NextStep::kFullEvery - 1;
    };
    print_layers("Gated DeltaNet: us from the end of the layer in front", times, model.layers(),
                 blocks, false, [&](int l) { return !is_full(l); });
    print_layers("attention: us from the end of the layer in front", times, model.layers(), blocks,
                 true, is_full);
  }
  return 0;
}
