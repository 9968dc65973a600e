// Each op of a decode step alone, at the shapes of Qwen3-30B-A3B, over enough distinct layers that
// L2 cannot hold them, in a captured graph: microseconds a layer and the share of the memory's
// rate.
//
//   ops_bench [LAYERS=48]
//
// Last line: one JSON object {"op": {"rows": us, ...}, ...}.
#include <cuda_bf16.h>
#include <fmt/format.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string>

#include "gpu/gpu_bench.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/linear_skinny.h"
#include "kernels/cuda/linear_split.h"
#include "kernels/cuda/moe_routing.h"
#include "kernels/cuda/moe_skinny.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/qk_rope_kv.h"

using namespace vamp;
using namespace vamp::cuda;
using bf16 = __nv_bfloat16;

namespace {

constexpr double kHbmBytesPerUs = 4.56e6;  // measured: what reading alone reaches
constexpr int kMaxRows = 128;

class Bench {
 public:
  explicit Bench(int layers)
      : layers_(layers), x_(kMaxRows * 8192), y_(kMaxRows * 160000), norm_(8192) {
    fill_normal_f32(norm_.get(), norm_.size(), 1.0f, 9);
    fill_normal(x_.get(), x_.size(), 1.0f, 1);
  }

  void report(const std::string& op, int rows, double us, double bytes) {
    fmt::print("{:<22} {:>4} rows {:>8.2f} us {:>8.1f} MB  {:>5.1f}% of HBM\n", op, rows, us,
               bytes / 1e6, 100 * bytes / us / kHbmBytesPerUs);
    std::fflush(stdout);
    results_[op][rows] = us;
  }

  void linear(const std::string& name, int N, int K, int layers) {
    DeviceBuffer<bf16> w(static_cast<size_t>(layers) * N * K);
    fill_normal(w.get(), w.size(), 0.02f, 2);
    for (int rows : {1, 4, 8, 16}) {
      const double us = graph_us([&](cudaStream_t s) {
        for (int l = 0; l < layers; ++l)
          linear_skinny(x_.get(), w.get() + static_cast<size_t>(l) * N * K, nullptr, y_.get(), rows,
                        N, K, false, s);
      });
      report(name, rows, us / layers, 2.0 * N * K);
    }
    for (int rows : {8, 16, 32, 64}) {
      const auto part = [&](int l) {
        return LinearPart{{w.get() + static_cast<size_t>(l) * N * K, DType::kBf16, N, K},
                          nullptr,
                          y_.get(),
                          N,
                          LinearPart::Out::kActivation};
      };
      if (!linear_split_takes(part(0), rows)) continue;
      const double us = graph_us([&](cudaStream_t s) {
        for (int l = 0; l < layers; ++l) linear_split(x_.get(), rows, part(l), s);
      });
      report(name + ", split", rows, us / layers, 2.0 * N * K);
    }
  }

  void moe(const MoeShape& shape, int layers) {
    const std::string which = fmt::format(" {}x{}", shape.experts, shape.intermediate);
    const size_t gate_up = size_t{2} * shape.intermediate * shape.hidden,
                 down = size_t{1} * shape.intermediate * shape.hidden;
    DeviceBuffer<bf16> w1(gate_up * shape.experts * layers), w2(down * shape.experts * layers);
    fill_normal(w1.get(), w1.size(), 0.02f, 3);
    fill_normal(w2.get(), w2.size(), 0.03f, 4);
    DeviceBuffer<float> logits(static_cast<size_t>(kMaxRows) * shape.experts * layers);
    fill_normal_f32(logits.get(), logits.size(), 1.0f, 5);
    const int pairs = kMaxRows * shape.top_k;
    const size_t ints = 2 * pairs + shape.experts + 2;
    DeviceBuffer<int> lists(layers * ints);
    DeviceBuffer<WorkItem> work(static_cast<size_t>(layers) * max_work_items(kMaxRows, shape));
    DeviceBuffer<float> weights(static_cast<size_t>(layers) * pairs);
    DeviceBuffer<bf16> activation(static_cast<size_t>(pairs) * shape.intermediate);
    DeviceBuffer<float> out(static_cast<size_t>(pairs) * shape.hidden);
    std::vector<Routing> routing(layers);
    for (int l = 0; l < layers; ++l) {
      Routing& r = routing[l];
      r.experts = lists.get() + l * ints;
      r.pairs = r.experts + pairs;
      r.expert_start = r.pairs + pairs;
      r.num_work = r.expert_start + shape.experts + 1;
      r.work = work.get() + static_cast<size_t>(l) * max_work_items(kMaxRows, shape);
      r.weights = weights.get() + static_cast<size_t>(l) * pairs;
    }
    for (int rows : {1, 2, 4, 8, 16, 32, 64, 128}) {
      const auto per_layer = [&](auto&& op) {
        return graph_us([&](cudaStream_t s) {
                 for (int l = 0; l < layers; ++l) op(l, s);
               }) /
               layers;
      };
      const double route_us = per_layer([&](int l, cudaStream_t s) {
        route(logits.get() + static_cast<size_t>(l) * kMaxRows * shape.experts, routing[l], rows,
              shape.experts, shape.top_k, true, s);
      });
      double active = 0;
      for (int l = 0; l < layers; ++l) {
        std::vector<int> start(shape.experts + 1);
        check(cudaMemcpy(start.data(), routing[l].expert_start, start.size() * 4,
                         cudaMemcpyDeviceToHost),
              "copy");
        for (int e = 0; e < shape.experts; ++e) active += start[e + 1] > start[e];
      }
      active /= layers;
      const auto layer_weights = [&](int l) {
        return MoeWeights{w1.get() + l * gate_up * shape.experts,
                          w2.get() + l * down * shape.experts, gate_up * 2, down * 2, DType::kBf16};
      };
      const double gate_up_us = per_layer([&](int l, cudaStream_t s) {
        moe_skinny_gate_up(x_.get(), rows, shape, layer_weights(l), routing[l], activation.get(),
                           s);
      });
      const double down_us = per_layer([&](int l, cudaStream_t s) {
        moe_skinny_down(activation.get(), rows, shape, layer_weights(l), routing[l], out.get(), s);
      });
      const double combine_us = per_layer([&](int l, cudaStream_t s) {
        moe_combine_rms_norm(out.get(), rows, shape, routing[l], y_.get(), norm_weight(), x_.get(),
                             s);
      });
      report("route" + which, rows, route_us, 4.0 * rows * shape.experts);
      report("moe gate_up" + which, rows, gate_up_us, active * gate_up * 2);
      report("moe down" + which, rows, down_us, active * down * 2);
      report("moe combine" + which, rows, combine_us, 4.0 * rows * shape.top_k * shape.hidden);
    }
  }

  NormWeight norm_weight() const { return {norm_.get(), 1e-6f, false}; }

  // Attention, and what precedes it, over a cache of `context` tokens a sequence.
  void attention(const AttentionShape& shape, int context, std::vector<int> batches) {
    const int most = *std::max_element(batches.begin(), batches.end()), block_tokens = 16;
    const int blocks_each = context / block_tokens, blocks = most * blocks_each;
    KvCache cache{nullptr, {layers_, shape.kv_heads, shape.head_dim, block_tokens, DType::kBf16}};
    DeviceBuffer<char> arena(cache.layout.block_bytes() * blocks);
    cache.arena = arena.get();
    fill_normal(arena.get(), arena.size() / 2, 1.0f, 6);
    Attention op(shape, block_tokens);
    const float scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim));
    const int width = (shape.num_heads + 2 * shape.kv_heads) * shape.head_dim;
    DeviceBuffer<float> cos_sin(static_cast<size_t>(kMaxRows) * 2 * shape.head_dim);
    fill_normal_f32(cos_sin.get(), cos_sin.size(), 1.0f, 7);
    for (int rows : batches) {
      std::vector<int> starts(rows + 1), block_starts(rows + 1), ids(rows * blocks_each),
          last(rows, block_tokens), slots(rows);
      for (int r = 0; r <= rows; ++r) {
        starts[r] = r;
        block_starts[r] = r * blocks_each;
      }
      for (int i = 0; i < rows * blocks_each; ++i)
        ids[i] = static_cast<int>(static_cast<uint64_t>(i) * 7919 % (rows * blocks_each));
      for (int r = 0; r < rows; ++r)
        slots[r] = ids[(r + 1) * blocks_each - 1] * block_tokens + block_tokens - 1;
      const DeviceBuffer<int> dstarts(starts), dblock_starts(block_starts), dids(ids), dlast(last),
          dslots(slots);
      const AttentionBatch batch{rows,          rows,
                                 starts.data(), block_starts.data(),
                                 dstarts.get(), dblock_starts.get(),
                                 dids.get(),    dlast.get()};
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < 20; ++i) op.plan(batch, true, nullptr);
      const double plan_us =
          std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
              .count() /
          20;
      check(cudaDeviceSynchronize(), "plan");
      const double us = graph_us([&](cudaStream_t s) {
        for (int l = 0; l < layers_; ++l) op.run(x_.get(), width, cache, l, scale, y_.get(), s);
      });
      report(fmt::format("attention {}k d{}", context / 1024, shape.head_dim), rows, us / layers_,
             static_cast<double>(rows) * context * 4 * shape.kv_heads * shape.head_dim);
      const DecodeShape decode_shape{shape.num_heads, shape.kv_heads, shape.head_dim};
      const DeviceBuffer<int> contexts(std::vector<int>(rows, context));
      const double decode_us = graph_us([&](cudaStream_t s) {
        for (int l = 0; l < layers_; ++l)
          decode_attention(x_.get(), width, {rows, contexts.get(), dblock_starts.get(), dids.get()},
                           decode_shape, cache, l, scale, y_.get(), s);
      });
      report(fmt::format("decode {}k d{}", context / 1024, shape.head_dim), rows,
             decode_us / layers_,
             static_cast<double>(rows) * context * 4 * shape.kv_heads * shape.head_dim);
      const double rope_us = graph_us([&](cudaStream_t s) {
        for (int l = 0; l < layers_; ++l)
          qk_norm_rope_write_kv(
              x_.get(), rows, {shape.num_heads, shape.kv_heads, shape.head_dim, shape.head_dim},
              norm_weight(), norm_weight(), cos_sin.get(), cache, l, dslots.get(), s);
      });
      report("qk norm rope kv", rows, rope_us / layers_, 2.0 * rows * width * 2);
      const double norm_us = graph_us([&](cudaStream_t s) {
        for (int l = 0; l < layers_; ++l)
          add_rms_norm(y_.get(), y_.get() + (8 << 20), rows, 2048, norm_weight(), x_.get(), s);
      });
      report("add rms norm", rows, norm_us / layers_, 8.0 * rows * 2048);
      fmt::print("  plan on the host: {:.1f} us\n", plan_us);
      fill_normal(x_.get(), x_.size(), 1.0f, 1);
    }
  }

  void print_json() const {
    std::string out;
    for (const auto& [op, rows] : results_) {
      std::string row;
      for (const auto& [n, us] : rows)
        row += fmt::format("{}\"{}\":{:.2f}", row.empty() ? "" : ",", n, us);
      out += fmt::format("{}\"{}\":{{{}}}", out.empty() ? "" : ",", op, row);
    }
    fmt::print("{{{}}}\n", out);
  }

 private:
  int layers_;
  DeviceBuffer<bf16> x_, y_;
  DeviceBuffer<float> norm_;
  std::map<std::string, std::map<int, double>> results_;
};

}  // namespace

int main(int argc, char** argv) {
  const int layers = argc > 1 ? std::atoi(argv[1]) : 48;
  Bench bench(layers);
  bench.linear("qkv 5120x2048", 5120, 2048, layers);
  bench.linear("o 2048x4096", 2048, 4096, layers);
  bench.linear("router 128x2048", 128, 2048, layers);
  bench.linear("head 151936x2048", 151936, 2048, 2);
  bench.moe(MoeShape{128, 8, 2048, 768}, layers);
  bench.moe(MoeShape{513, 11, 2048, 512}, 12);  // Qwen3-Next, whole and one of two ranks
  bench.moe(MoeShape{513, 11, 2048, 256}, 16);
  bench.attention({32, 4, 128}, 4096, {1, 4, 16, 64, 128});
  bench.print_json();
  return 0;
}
