// The CPU kernels at the shapes of the SmolLM2 MoE (hidden 576, 9 query and 3 KV heads of 64, 8
// experts of width 1536, top-2, vocabulary 49,152), against the memory's and the multiplier's own
// rates.
//
//   kernels_bench [--threads N] [--isa NAME] [--layers N] [--only NAME]
//
// `--layers` layers of experts are walked in turn, so that decode reads weights from memory and not
// from the last-level cache. Prints a line per operation, then one JSON object.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/random.h"
#include "kernels/cpu/cpu_ops.h"

namespace vamp {
namespace {

constexpr int kHidden = 576, kHeads = 9, kKvHeads = 3, kHeadDim = 64, kVocab = 49152;
constexpr MoeShape kMoe{8, 2, kHidden, 1536};

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

class Bench {
 public:
  Bench(const CpuOpsOptions& options, int layers, std::string only)
      : ops_(make_cpu_ops(options)),
        layers_(layers),
        activation_(ops_->types().activation),
        weights_(static_cast<size_t>(layers) * layer_elements() + kVocab * kHidden),
        only_(std::move(only)) {
    Random random(1);
    std::vector<uint16_t> noise(1 << 16);
    for (uint16_t& bits : noise) {
      const auto value = static_cast<float>(random.normal() * 0.04);
      uint32_t word;
      std::memcpy(&word, &value, sizeof word);
      bits = static_cast<uint16_t>(word >> 16);
    }
    for (size_t i = 0; i < weights_.size(); i += noise.size()) {
      std::copy_n(noise.begin(), std::min(noise.size(), weights_.size() - i),
                  weights_.begin() + static_cast<ptrdiff_t>(i));
    }
  }

  nlohmann::json run() {
    memory_rate();
    for (const int rows : {1, 2, 4, 8, 16, 64, 256, 1024}) {
      linear(rows, kHidden, "o_proj");
      moe(rows);
    }
    linear(1, kVocab, "lm_head");
    linear(8, kVocab, "lm_head");
    attention(1, 1024, 1);
    attention(8, 1024, 1);
    attention(1, 8192, 1);
    attention(1, 1024, 1024);
    attention(1, 4096, 1024);
    return results_;
  }

 private:
  static size_t expert_elements() { return size_t{3} * kMoe.intermediate * kHidden; }
  static size_t layer_elements() { return expert_elements() * kMoe.experts; }
  size_t width() const { return dtype_bytes(activation_); }

  // The best of as many calls as fit half a second: on a shared machine, what the code can do.
  template <class Body>
  void measure(const std::string& name, double flops, double bytes, const Body& body) {
    if (name.find(only_) == std::string::npos) return;
    double best = std::numeric_limits<double>::infinity();
    int calls = 0;
    for (double end = now() + 0.5; calls < 5 || now() < end; ++calls) {
      const double start = now();
      body();
      best = std::min(best, now() - start);
    }
    report(name, best, flops, bytes);
  }

  void report(const std::string& name, double seconds, double flops, double bytes) {
    fmt::print("{:<28} {:>10.1f} us {:>9.1f} GFLOP/s {:>7.2f} GB/s\n", name, seconds * 1e6,
               flops / seconds / 1e9, bytes / seconds / 1e9);
    results_[name] = {{"us", seconds * 1e6},
                      {"gflops", flops / seconds / 1e9},
                      {"gb_per_s", bytes / seconds / 1e9}};
  }

  void memory_rate() {
    const size_t words = weights_.size() / 4;
    const auto* p = reinterpret_cast<const uint64_t*>(weights_.data());
    measure("memory read", 0, static_cast<double>(words) * 8,
            [&] { sink_ = sink_ + std::accumulate(p, p + words, uint64_t{0}); });
  }

  std::vector<std::byte> activations(int rows, int cols) {
    std::vector<std::byte> x(static_cast<size_t>(rows * cols) * width());
    Random random(3);
    for (int i = 0; i < rows * cols; ++i) {
      const auto value = static_cast<float>(random.normal());
      const auto* bytes = reinterpret_cast<const std::byte*>(&value);
      std::copy_n(bytes + 4 - width(), width(),
                  x.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(i) * width()));
    }
    return x;
  }

  void linear(int rows, int n, const std::string& what) {
    const auto x = activations(rows, kHidden);
    std::vector<float> out(static_cast<size_t>(rows * n));
    const size_t step = layer_elements();
    int layer = 0;
    const double elements = static_cast<double>(n) * kHidden;
    measure(fmt::format("{} rows={}", what, rows), 2 * elements * rows, 2 * elements, [&] {
      const size_t at = n == kVocab ? 0 : static_cast<size_t>(layer++ % layers_) * step;
      const LinearPart part{{weights_.data() + at, DType::kBf16, n, kHidden},
                            nullptr,
                            out.data(),
                            n,
                            LinearPart::Out::kFloat};
      ops_->linear(x.data(), kHidden, rows, {&part, 1});
    });
  }

  void moe(int rows) {
    const auto x = activations(rows, kHidden);
    std::vector<float> logits(static_cast<size_t>(rows * kMoe.experts)),
        weights(static_cast<size_t>(rows * kMoe.top_k));
    Random random(9);
    for (float& l : logits) l = static_cast<float>(random.normal());
    std::vector<int32_t> experts(weights.size()), start(static_cast<size_t>(kMoe.experts) + 1),
        pairs(weights.size()), all(static_cast<size_t>(kMoe.experts));
    std::iota(all.begin(), all.end(), 0);
    const MoeRouting routing{experts.data(), weights.data(), start.data(), pairs.data()};
    ops_->route(logits.data(), rows, kMoe, true, routing);
    std::vector<std::byte> workspace(ops_->moe_workspace_bytes(rows, kMoe));
    std::vector<float> residual(static_cast<size_t>(rows) * kHidden);
    const size_t gate_up = size_t{2} * kMoe.intermediate * kHidden, down = gate_up / 2;
    int layer = 0;
    int used = 0;
    for (size_t e = 0; e < all.size(); ++e) used += start[e] < start[e + 1];
    const auto elements = static_cast<double>(expert_elements());
    measure(fmt::format("moe rows={}", rows), 2 * elements * rows * kMoe.top_k, 2 * elements * used,
            [&] {
              const uint16_t* base =
                  weights_.data() + static_cast<size_t>(layer++ % layers_) * layer_elements();
              const MoeWeights w{base, base + gate_up * kMoe.experts, gate_up * 2, down * 2,
                                 DType::kBf16};
              ops_->moe_experts(x.data(), rows, kMoe, w, routing, all, workspace.data());
              ops_->moe_combine(workspace.data(), rows, kMoe, routing, residual.data());
            });
  }

  // `sequences` sequences whose last `queries` tokens attend to `context` positions.
  void attention(int sequences, int context, int queries) {
    const KvLayout layout{4, kKvHeads, kHeadDim, 16, activation_};
    const int blocks = context / 16;
    std::vector<std::byte> arena(static_cast<size_t>(sequences * blocks) * layout.block_bytes());
    std::vector<int32_t> positions, starts, block_starts, ids;
    for (int s = 0; s <= sequences; ++s) {
      starts.push_back(s * queries);
      block_starts.push_back(s * blocks);
      if (s == sequences) break;
      for (int i = 0; i < queries; ++i) positions.push_back(context - queries + i);
      for (int b = 0; b < blocks; ++b) ids.push_back(b * sequences + s);
    }
    const int rows = sequences * queries;
    const SequenceBatch batch{rows,          sequences,           positions.data(),
                              starts.data(), block_starts.data(), ids.data()};
    const auto q = activations(rows, kHeads * kHeadDim);
    std::vector<std::byte> out(q.size());
    const KvCache cache{arena.data(), layout};
    const double seen = (context - (queries - 1) / 2.0) * queries * sequences;
    measure(fmt::format("attention {}x{} of {}", sequences, queries, context),
            4.0 * seen * kHeads * kHeadDim,
            2.0 * static_cast<double>(width()) * sequences * context * kKvHeads * kHeadDim, [&] {
              ops_->attention(q.data(), kHeads * kHeadDim, batch, cache, 1, kHeads, 0.125f,
                              out.data(), kHeads * kHeadDim);
            });
  }

  std::unique_ptr<Ops> ops_;
  int layers_;
  DType activation_;
  std::vector<uint16_t> weights_;
  std::string only_;
  volatile uint64_t sink_ = 0;
  nlohmann::json results_;
};

CpuIsa parse_isa(const std::string& name) {
  for (const CpuIsa isa : supported_cpu_isas()) {
    if (name == cpu_isa_name(isa)) return isa;
  }
  throw CLI::ValidationError("--isa", name + " is not available here");
}

}  // namespace
}  // namespace vamp

int main(int argc, char** argv) {
  CLI::App app{"CPU kernels at the shapes of the SmolLM2 MoE"};
  vamp::CpuOpsOptions options;
  options.threads = 1;
  int layers = 12;
  std::string isa, only;
  app.add_option("--threads", options.threads, "Threads (default 1)");
  app.add_option("--isa", isa, "scalar, avx2, avx512, avx512_bf16 or amx_bf16 (default the best)");
  app.add_option("--layers", layers, "Layers of weights to walk through (default 12: 512 MB)");
  app.add_option("--only", only, "Only operations whose name contains this");
  CLI11_PARSE(app, argc, argv);
  if (!isa.empty()) options.isa = vamp::parse_isa(isa);
  fmt::print("{}\n", vamp::Bench(options, layers, only).run().dump());
}
