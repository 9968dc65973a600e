// The CUDA ops of many rows (products, rotation, attention of long queries) against the CPU ops in
// f32. Without a GPU every test says so and is skipped.
#include <algorithm>
#include <numeric>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_test_support.h"
#include "kernels/cuda/linear.h"
#include "kernels/cuda/linear_skinny.h"
#include "kernels/cuda/qk_rope_kv.h"

namespace vamp::cuda {
namespace {

using bf16 = __nv_bfloat16;
using test::Tensor;

struct LinearCase {
  int rows, N, K;
  LinearPart::Out kind;
  bool bias;
  int padding;  // elements between rows
};
using Out = LinearPart::Out;
class LargeLinear : public testing::TestWithParam<LinearCase> {};

TEST_P(LargeLinear, MatchesTheCpu) {
  SKIP_WITHOUT_GPU();
  const LinearCase c = GetParam();
  Random random(static_cast<uint64_t>(c.rows * 31 + c.N));
  const auto rows = static_cast<size_t>(c.rows), N = static_cast<size_t>(c.N),
             K = static_cast<size_t>(c.K), padding = static_cast<size_t>(c.padding);
  const Tensor x = Tensor::random(DType::kBf16, rows * (K + padding), random);
  const Tensor w = Tensor::random(DType::kBf16, N * K, random, 1 / std::sqrt(c.K));
  const Tensor bias = Tensor::random(DType::kF32, N, random);
  const DType type = c.kind == LinearPart::Out::kFloat ? DType::kF32 : DType::kBf16;
  const Tensor old = c.kind == LinearPart::Out::kResidual
                         ? Tensor::random(type, rows * (N + padding), random)
                         : poison(type, rows * (N + padding));
  LinearPart part{{w.data(), DType::kBf16, c.N, c.K},
                  c.bias ? static_cast<const float*>(bias.data()) : nullptr,
                  nullptr,
                  c.N + c.padding,
                  c.kind};
  Tensor want = widened(old);
  const Tensor wide = widened(x);
  part.out = want.data();
  cpu()->linear(wide.data(), c.K + c.padding, c.rows, {&part, 1});

  const OnDevice dx(x), dw(w), dbias(bias);
  for (const bool tuned : {false, true}) {
    const OnDevice out(old);
    part.weight.data = dw.bf();
    part.bias = c.bias ? dbias.f32() : nullptr;
    part.out = out.bf();
    Linear linear;
    if (tuned) {
      const OnDevice scratch(old);
      LinearPart timed = part;
      timed.out = scratch.bf();
      linear.tune(dx.bf(), c.K + c.padding, c.rows, {&timed, 1});
    }
    linear.run(dx.bf(), c.K + c.padding, c.rows, {&part, 1}, nullptr);
    if (type == DType::kF32) {
      const Tensor got = out.back();
      for (size_t i = 0; i < got.size(); ++i)
        ASSERT_NEAR(got[i], want[i], 1e-5f * (1 + std::abs(want[i]))) << i;
    } else {
      // The product may be rounded before bias or residual, both of about 1, are added.
      expect_near(out.back(), want, 2, c.bias || c.kind == Out::kResidual ? 2.0f : 0.01f);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, LargeLinear,
                         testing::Values(LinearCase{17, 512, 256, Out::kActivation, false, 0},
                                         LinearCase{33, 128, 2048, Out::kFloat, false, 0},
                                         LinearCase{100, 256, 512, Out::kResidual, false, 0},
                                         LinearCase{256, 128, 2048, Out::kFloat, false, 0},
                                         LinearCase{479, 520, 2048, Out::kFloat, true, 0},
                                         LinearCase{129, 72, 136, Out::kActivation, true, 8},
                                         LinearCase{128, 5120, 2048, Out::kActivation, false, 0},
                                         LinearCase{256, 2048, 4096, Out::kResidual, false, 0},
                                         LinearCase{201, 200, 520, Out::kActivation, true, 0},
                                         LinearCase{64, 2048, 4096, Out::kResidual, false, 0},
                                         LinearCase{61, 200, 1000, Out::kResidual, true, 0},
                                         LinearCase{97, 136, 72, Out::kFloat, true, 0},
                                         LinearCase{16, 2048, 4096, Out::kResidual, false, 0},
                                         LinearCase{5, 64, 128, Out::kFloat, true, 0},
                                         LinearCase{5, 64, 128, Out::kResidual, false, 16},
                                         LinearCase{300, 1000, 72, Out::kResidual, false, 24},
                                         LinearCase{16, 64, 128, Out::kActivation, false, 0},
                                         LinearCase{1, 64, 128, Out::kActivation, false, 0},
                                         LinearCase{0, 64, 128, Out::kActivation, false, 0}));

struct RopeCase {
  QkvShape shape;
  int tokens;
  bool norm;
};
class ManyTokensRope : public testing::TestWithParam<RopeCase> {};

// Many tokens at once give what they give in steps of few, which ops_test holds against the host.
TEST_P(ManyTokensRope, AsInSmallSteps) {
  SKIP_WITHOUT_GPU();
  const auto& [shape, tokens, with_norm] = GetParam();
  Random random(static_cast<uint64_t>(shape.head_dim));
  const int heads = shape.num_heads + 2 * shape.kv_heads, width = heads * shape.head_dim;
  KvCache cache{nullptr, {2, shape.kv_heads, shape.head_dim, 16, DType::kBf16}};
  const int blocks = (tokens + 15) / 16 + 1;
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  const Tensor qkv = Tensor::random(DType::kBf16, size(int64_t{tokens} * width), random);
  const Tensor arena = poison(DType::kBf16, size(blocks * cache.layout.block_stride()));
  const Tensor cos_sin =
      Tensor::random(DType::kF32, size(int64_t{tokens} * shape.rotary_dim), random);
  const Tensor weight = Tensor::random(DType::kF32, size(shape.head_dim), random);
  std::vector<int32_t> slots(size(tokens));
  for (int t = 0; t < tokens; ++t) slots[size(t)] = t % 7 == 3 ? -1 : tokens - t;
  const OnDevice dcos_sin(cos_sin), dweight(weight);
  const DeviceBuffer<int32_t> dslots(slots);
  const NormWeight norm{with_norm ? dweight.f32() : nullptr, 1e-6f, true};
  std::vector<Tensor> results;
  for (const int step : {tokens, 100}) {
    const OnDevice in_place(qkv), out(arena);
    cache.arena = out.bf();
    for (int t = 0; t < tokens; t += step) {
      qk_norm_rope_write_kv(in_place.bf() + int64_t{t} * width, std::min(step, tokens - t), shape,
                            norm, norm, dcos_sin.f32() + int64_t{t} * shape.rotary_dim, cache, 1,
                            dslots.get() + t, nullptr);
    }
    results.push_back(in_place.back());
    results.push_back(out.back());
  }
  // The norm's sum has another order: a last bit of f32, which may turn a rounding to bf16.
  for (const size_t which : {0u, 1u}) {
    for (size_t i = 0; i < results[which].size(); ++i) {
      ASSERT_NEAR(results[which][i], results[which + 2][i],
                  0x1p-7f * std::abs(results[which + 2][i]) + 1e-5f)
          << (which == 0 ? "qkv" : "cache") << " at " << i;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, ManyTokensRope,
                         testing::Values(RopeCase{{32, 4, 128, 128}, 301, true},
                                         RopeCase{{16, 2, 256, 64}, 256, true},
                                         RopeCase{{3, 1, 256, 256}, 258, false},
                                         RopeCase{{5, 1, 64, 64}, 270, true},
                                         RopeCase{{8, 8, 128, 64}, 257, true}));

struct LongCase {
  int heads, kv_heads, head_dim, block_tokens;
  std::vector<std::pair<int, int>> sequences;  // (context before, new tokens)
};
class LongAttention : public testing::TestWithParam<LongCase> {
 protected:
  // The new tokens' keys and values as the cache has them, [tokens, 2, kv_heads, head_dim].
  static Tensor dense_kv(const LongCase& c, const Tensor& arena, const KvLayout& layout, int layer,
                         const std::vector<int32_t>& ids, const std::vector<int32_t>& block_start) {
    std::vector<float> out;
    for (size_t s = 0; s < c.sequences.size(); ++s) {
      const auto& [before, fresh] = c.sequences[s];
      for (int p = before; p < before + fresh; ++p) {
        const int64_t block = ids[static_cast<size_t>(block_start[s] + p / c.block_tokens)];
        for (const int64_t part : {int64_t{0}, layout.v_offset()}) {
          for (int h = 0; h < c.kv_heads; ++h) {
            const int64_t at = block * layout.block_stride() + part +
                               layout.k_offset(layer, h, p % c.block_tokens);
            for (int d = 0; d < c.head_dim; ++d) out.push_back(arena[static_cast<size_t>(at + d)]);
          }
        }
      }
    }
    return Tensor(DType::kBf16, out);
  }
};

TEST_P(LongAttention, MatchesTheCpu) {
  SKIP_WITHOUT_GPU();
  const LongCase c = GetParam();
  Random random(static_cast<uint64_t>(c.head_dim + c.heads));
  KvCache cache{nullptr, {2, c.kv_heads, c.head_dim, c.block_tokens, DType::kBf16}};
  const int layer = 1;
  std::vector<int32_t> positions, query_start{0}, block_start{0}, last, contexts;
  for (const auto& [before, fresh] : c.sequences) {
    const int context = before + fresh;
    for (int p = before; p < context; ++p) positions.push_back(p);
    query_start.push_back(static_cast<int32_t>(positions.size()));
    block_start.push_back(block_start.back() + (context + c.block_tokens - 1) / c.block_tokens);
    last.push_back((context - 1) % c.block_tokens + 1);
    contexts.push_back(context);
  }
  const auto blocks = static_cast<size_t>(block_start.back());
  std::vector<int32_t> ids(blocks);
  std::iota(ids.begin(), ids.end(), 0);
  for (size_t i = blocks - 1; i > 0; --i) std::swap(ids[i], ids[random.below(i + 1)]);
  const auto tokens = static_cast<int>(positions.size());
  const auto D = static_cast<size_t>(c.head_dim), width = static_cast<size_t>(c.heads) * D,
             stride = width + 64;
  Tensor arena = Tensor::random(DType::kBf16,
                                blocks * static_cast<size_t>(cache.layout.block_stride()), random);
  const Tensor q = Tensor::random(DType::kBf16, static_cast<size_t>(tokens) * stride, random);
  // What lies behind a sequence's last token is never to be read into a result.
  for (size_t s = 0; s < contexts.size(); ++s) {
    for (int t = last[s]; t < c.block_tokens; ++t) {
      for (int h = 0; h < c.kv_heads; ++h) {
        const auto at = static_cast<size_t>(ids[static_cast<size_t>(block_start[s + 1]) - 1] *
                                                cache.layout.block_stride() +
                                            cache.layout.k_offset(layer, h, t));
        for (size_t d = 0; d < D; ++d) {
          arena.set(at + d, std::numeric_limits<float>::quiet_NaN());
          arena.set(at + static_cast<size_t>(cache.layout.v_offset()) + d,
                    std::numeric_limits<float>::quiet_NaN());
        }
      }
    }
  }
  const float scale = 1 / std::sqrt(static_cast<float>(c.head_dim));
  const int sequences = static_cast<int>(contexts.size());
  Tensor want(DType::kF32, static_cast<size_t>(tokens) * width);
  const Tensor wide_q = widened(q);
  Tensor wide_arena = widened(arena);
  KvCache host_cache = cache;
  host_cache.arena = wide_arena.data();
  host_cache.layout.dtype = DType::kF32;
  cpu()->attention(
      wide_q.data(), static_cast<int64_t>(stride),
      {tokens, sequences, positions.data(), query_start.data(), block_start.data(), ids.data()},
      host_cache, layer, c.heads, scale, want.data(), static_cast<int64_t>(width));

  const OnDevice darena(arena), dq(q);
  cache.arena = darena.bf();
  const DeviceBuffer<int32_t> dquery_start(query_start), dblock_start(block_start), dids(ids),
      dlast(last);
  Attention attention({c.heads, c.kv_heads, c.head_dim}, c.block_tokens, size_t{64} << 20);
  AttentionBatch batch{sequences,
                       tokens,
                       query_start.data(),
                       block_start.data(),
                       dquery_start.get(),
                       dblock_start.get(),
                       dids.get(),
                       dlast.get(),
                       nullptr};
  const OnDevice dense(dense_kv(c, arena, cache.layout, layer, ids, block_start));
  const int64_t kv_width = int64_t{c.kv_heads} * c.head_dim;
  for (const auto& [fa3, with_dense] : {std::pair{false, false}, {true, false}, {true, true}}) {
    batch.context_host = fa3 ? contexts.data() : nullptr;
    batch.dense = with_dense;
    const OnDevice out(poison(DType::kBf16, static_cast<size_t>(tokens) * width));
    attention.plan(batch, false, nullptr);
    attention.run(dq.bf(), static_cast<int64_t>(stride), cache, layer, scale, out.bf(), nullptr,
                  {dense.bf(), dense.bf() + kv_width, 2 * kv_width});
    const Tensor got = out.back();
    // Probabilities and the result are rounded to bf16; values average ones of about 1.
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], want[i], 4 * 0x1p-9f * (std::abs(want[i]) + 0.5f))
          << (with_dense ? "dense"
              : fa3      ? "FA3"
                         : "FA2")
          << " token " << i / width << " at " << i % width;
  }
}
INSTANTIATE_TEST_SUITE_P(
    Shapes, LongAttention,
    testing::Values(LongCase{8, 2, 128, 16, {{0, 192}}}, LongCase{8, 1, 128, 16, {{1000, 300}}},
                    LongCase{4, 2, 128, 16, {{9, 1}, {70, 260}, {0, 333}, {0, 200}}},
                    LongCase{4, 4, 128, 32, {{5, 1}, {100, 7}, {77, 400}, {0, 1}, {33, 200}}},
                    LongCase{8, 1, 256, 16, {{0, 333}}},
                    LongCase{4, 2, 256, 16, {{40, 1}, {500, 193}}}));

}  // namespace
}  // namespace vamp::cuda
