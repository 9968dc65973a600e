// The CUDA ops of few rows against plain double-precision loops on the host. Without a GPU every
// test says so and is skipped.
#include <algorithm>
#include <numeric>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/cuda_test_support.h"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/linear_skinny.h"
#include "kernels/cuda/norm.h"
#include "kernels/cuda/qk_rope_kv.h"

namespace vamp::cuda {
namespace {

using bf16 = __nv_bfloat16;

struct LinearCase {
  int T, N, K;
};
class LinearSkinny : public testing::TestWithParam<LinearCase> {};

TEST_P(LinearSkinny, MatchesHost) {
  SKIP_WITHOUT_GPU();
  const auto [T, N, K] = GetParam();
  Random random(static_cast<uint64_t>(T * 1000003 + N * 101 + K));
  const auto x = random_bf16(random, static_cast<size_t>(T) * K, 1.0);
  const auto w = random_bf16(random, static_cast<size_t>(N) * K, 1.0 / std::sqrt(K));
  const auto bias = random_bf16(random, N, 1.0),
             old = random_bf16(random, static_cast<size_t>(T) * N, 1.0);
  std::vector<double> want(static_cast<size_t>(T) * N), accumulated(want.size());
  for (int t = 0; t < T; ++t) {
    for (int n = 0; n < N; ++n) {
      double sum = 0;
      for (int k = 0; k < K; ++k)
        sum += static_cast<double>(__bfloat162float(x[t * K + k])) *
               __bfloat162float(w[static_cast<size_t>(n) * K + k]);
      want[t * N + n] = sum + __bfloat162float(bias[n]);
      accumulated[t * N + n] = sum + __bfloat162float(old[t * N + n]);
    }
  }
  const DeviceBuffer<bf16> dx(x), dw(w), dbias(bias);
  DeviceBuffer<bf16> y(static_cast<size_t>(T) * N), z(old);
  check(cudaMemset(y.get(), 0xff, y.size() * 2), "poison");
  linear_skinny(dx.get(), dw.get(), dbias.get(), y.get(), T, N, K, false, nullptr);
  linear_skinny(dx.get(), dw.get(), nullptr, z.get(), T, N, K, true, nullptr);
  expect_close(y.to_host(), want, 1.0);
  expect_close(z.to_host(), accumulated, 1.0);

  // A row alone gives the bits it gave among others.
  const auto together = y.to_host();
  DeviceBuffer<bf16> alone(N);
  for (int t = 0; t < T; ++t) {
    linear_skinny(dx.get() + static_cast<size_t>(t) * K, dw.get(), dbias.get(), alone.get(), 1, N,
                  K, false, nullptr);
    const auto row = alone.to_host();
    for (int n = 0; n < N; ++n)
      ASSERT_EQ(__bfloat162float(row[n]), __bfloat162float(together[t * N + n])) << t << " " << n;
  }
}
INSTANTIATE_TEST_SUITE_P(Shapes, LinearSkinny,
                         testing::Values(LinearCase{1, 32, 256}, LinearCase{1, 5120, 2048},
                                         LinearCase{3, 100, 72}, LinearCase{8, 512, 2048},
                                         LinearCase{9, 33, 4096}, LinearCase{16, 1000, 768},
                                         LinearCase{5, 1, 8}));

struct NormCase {
  int rows, cols;
  bool delta, one_plus;
};
class AddRmsNorm : public testing::TestWithParam<NormCase> {};

TEST_P(AddRmsNorm, MatchesHost) {
  SKIP_WITHOUT_GPU();
  const NormCase c = GetParam();
  Random random(static_cast<uint64_t>(c.cols));
  const size_t count = static_cast<size_t>(c.rows) * c.cols;
  const auto delta = random_bf16(random, count, 1.0), residual = random_bf16(random, count, 2.0);
  std::vector<float> weight(c.cols);
  for (float& w : weight) w = static_cast<float>(random.normal());
  std::vector<double> want_residual(count), want(count);
  for (int r = 0; r < c.rows; ++r) {
    double squares = 0;
    for (int i = 0; i < c.cols; ++i) {
      const size_t at = static_cast<size_t>(r) * c.cols + i;
      const float sum =
          __bfloat162float(residual[at]) + (c.delta ? __bfloat162float(delta[at]) : 0.0f);
      want_residual[at] = __bfloat162float(__float2bfloat16(sum));
      squares += want_residual[at] * want_residual[at];
    }
    const double scale = 1 / std::sqrt(squares / c.cols + 1e-6);
    for (int i = 0; i < c.cols; ++i) {
      const size_t at = static_cast<size_t>(r) * c.cols + i;
      want[at] = want_residual[at] * scale * (c.one_plus ? 1.0 + weight[i] : weight[i]);
    }
  }
  const DeviceBuffer<bf16> ddelta(delta);
  const DeviceBuffer<float> dweight(weight);
  DeviceBuffer<bf16> dresidual(residual), out(count);
  check(cudaMemset(out.get(), 0xff, count * 2), "poison");
  add_rms_norm(c.delta ? ddelta.get() : nullptr, dresidual.get(), c.rows, c.cols,
               {dweight.get(), 1e-6f, c.one_plus}, out.get(), nullptr);
  expect_close(dresidual.to_host(), want_residual, 1e-9);
  expect_close(out.to_host(), want, 1.0);
}
INSTANTIATE_TEST_SUITE_P(Shapes, AddRmsNorm,
                         testing::Values(NormCase{1, 2048, true, false},
                                         NormCase{5, 2048, false, true},
                                         NormCase{3, 72, true, false},
                                         NormCase{2, 8192, true, true}));

struct AttentionCase {
  int heads, kv_heads, head_dim, rotary_dim, block_tokens;
  std::vector<std::pair<int, int>> sequences;  // (context before, new tokens)
  bool norm;
};
class AttentionPath : public testing::TestWithParam<AttentionCase> {};

// From the projection's output to attention's: rotate, write, attend, all against double loops over
// the tokens' own history.
TEST_P(AttentionPath, MatchesHost) {
  SKIP_WITHOUT_GPU();
  const AttentionCase c = GetParam();
  Random random(static_cast<uint64_t>(c.heads * 7 + c.head_dim));
  const int D = c.head_dim, width = (c.heads + 2 * c.kv_heads) * D, layers = 2, layer = 1;
  KvCache cache{nullptr, {layers, c.kv_heads, D, c.block_tokens, DType::kBf16}};
  std::vector<int> query_start{0}, block_start{0}, ids, last, slots, positions;
  int blocks = 0;
  for (auto [before, fresh] : c.sequences)
    blocks += (before + fresh + c.block_tokens - 1) / c.block_tokens;
  std::vector<int> shuffled(blocks);
  std::iota(shuffled.begin(), shuffled.end(), 0);
  for (int i = blocks - 1; i > 0; --i) std::swap(shuffled[i], shuffled[random.below(i + 1)]);
  for (auto [before, fresh] : c.sequences) {
    const int total = before + fresh, count = (total + c.block_tokens - 1) / c.block_tokens;
    const int first = static_cast<int>(ids.size());
    for (int b = 0; b < count; ++b) ids.push_back(shuffled[first + b]);
    for (int p = before; p < total; ++p) {
      positions.push_back(p);
      slots.push_back(ids[first + p / c.block_tokens] * c.block_tokens + p % c.block_tokens);
    }
    query_start.push_back(query_start.back() + fresh);
    block_start.push_back(static_cast<int>(ids.size()));
    last.push_back((total - 1) % c.block_tokens + 1);
  }
  const int tokens = query_start.back();
  const auto qkv = random_bf16(random, static_cast<size_t>(tokens) * width, 1.0);
  auto arena = random_bf16(random, cache.layout.block_stride() * static_cast<size_t>(blocks), 1.0);
  std::vector<float> cos_sin(static_cast<size_t>(tokens) * c.rotary_dim), weight(D);
  const int half = c.rotary_dim / 2;
  for (int t = 0; t < tokens; ++t) {
    for (int i = 0; i < half; ++i) {
      const double angle = positions[t] * std::pow(10000.0, -2.0 * i / c.rotary_dim);
      cos_sin[t * c.rotary_dim + i] = static_cast<float>(std::cos(angle));
      cos_sin[t * c.rotary_dim + half + i] = static_cast<float>(std::sin(angle));
    }
  }
  for (float& w : weight) w = static_cast<float>(1 + 0.1 * random.normal());

  // Host: rotated q, and k and v as they must then lie in the cache.
  std::vector<double> q(static_cast<size_t>(tokens) * c.heads * D);
  const auto place = [&](int slot, int head, bool value) {
    return slot / c.block_tokens * cache.layout.block_stride() +
           (value ? cache.layout.v_offset() : 0) +
           cache.layout.k_offset(layer, head, slot % c.block_tokens);
  };
  for (int t = 0; t < tokens; ++t) {
    for (int h = 0; h < c.heads + 2 * c.kv_heads; ++h) {
      std::vector<double> x(D);
      for (int d = 0; d < D; ++d)
        x[d] = __bfloat162float(qkv[static_cast<size_t>(t) * width + h * D + d]);
      if (h < c.heads + c.kv_heads) {
        double squares = 0;
        for (double v : x) squares += v * v;
        if (c.norm)
          for (int d = 0; d < D; ++d) x[d] *= weight[d] / std::sqrt(squares / D + 1e-6);
        const std::vector<double> old = x;
        for (int i = 0; i < half; ++i) {
          const double cosine = cos_sin[t * c.rotary_dim + i],
                       sine = cos_sin[t * c.rotary_dim + half + i];
          x[i] = old[i] * cosine - old[i + half] * sine;
          x[i + half] = old[i + half] * cosine + old[i] * sine;
        }
      }
      for (int d = 0; d < D; ++d) {
        const bf16 rounded = __float2bfloat16(static_cast<float>(x[d]));
        if (h < c.heads) {
          q[(static_cast<size_t>(t) * c.heads + h) * D + d] = __bfloat162float(rounded);
        } else {
          const bool value = h >= c.heads + c.kv_heads;
          arena[place(slots[t], (h - c.heads) % c.kv_heads, value) + d] = rounded;
        }
      }
    }
  }
  // Device: the same, from an arena whose new places still hold noise.
  auto before = arena;
  for (int t = 0; t < tokens; ++t)
    for (int h = 0; h < c.kv_heads; ++h)
      for (int d = 0; d < D; ++d)
        before[place(slots[t], h, false) + d] = before[place(slots[t], h, true) + d] =
            __float2bfloat16(77.0f);
  DeviceBuffer<bf16> darena(before), dqkv(qkv), out(static_cast<size_t>(tokens) * c.heads * D);
  cache.arena = darena.get();
  const DeviceBuffer<float> dcos_sin(cos_sin), dweight(weight);
  const DeviceBuffer<int> dslots(slots), dquery_start(query_start), dblock_start(block_start),
      dids(ids), dlast(last);
  const NormWeight norm = c.norm ? NormWeight{dweight.get(), 1e-6f, false} : NormWeight{};
  qk_norm_rope_write_kv(dqkv.get(), tokens, {c.heads, c.kv_heads, D, c.rotary_dim}, norm, norm,
                        dcos_sin.get(), cache, layer, dslots.get(), nullptr);
  const auto written = darena.to_host();
  for (size_t i = 0; i < arena.size(); ++i)
    ASSERT_NEAR(__bfloat162float(written[i]), __bfloat162float(arena[i]),
                std::abs(__bfloat162float(arena[i])) * 0x1p-7 + 1e-5)
        << i;

  // P is rounded to bf16 before it meets V: 2^-9 of values of about 1, averaged.
  std::vector<double> want(static_cast<size_t>(tokens) * c.heads * D);
  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
  for (size_t s = 0; s < c.sequences.size(); ++s) {
    for (int t = query_start[s]; t < query_start[s + 1]; ++t) {
      for (int h = 0; h < c.heads; ++h) {
        const int kv_head = h / (c.heads / c.kv_heads), context = positions[t] + 1;
        const size_t row = (static_cast<size_t>(t) * c.heads + h) * D;
        const auto slot = [&](int j) {
          return ids[block_start[s] + j / c.block_tokens] * c.block_tokens + j % c.block_tokens;
        };
        std::vector<double> p(context);
        double most = -1e30, sum = 0;
        for (int j = 0; j < context; ++j) {
          for (int d = 0; d < D; ++d)
            p[j] += q[row + d] * __bfloat162float(arena[place(slot(j), kv_head, false) + d]);
          p[j] *= scale;
          most = std::max(most, p[j]);
        }
        for (double& x : p) sum += x = std::exp(x - most);
        for (int j = 0; j < context; ++j) {
          for (int d = 0; d < D; ++d)
            want[row + d] +=
                p[j] / sum * __bfloat162float(arena[place(slot(j), kv_head, true) + d]);
        }
      }
    }
  }
  const auto expect_want = [&](const std::string& name) {
    const auto got = out.to_host();
    for (size_t i = 0; i < want.size(); ++i)
      ASSERT_NEAR(__bfloat162float(got[i]), want[i], 0.02) << name << " at " << i;
  };
  Attention attention({c.heads, c.kv_heads, D}, c.block_tokens, size_t{64} << 20);
  const int sequences = static_cast<int>(c.sequences.size());
  const AttentionBatch batch{
      sequences,          tokens,     query_start.data(), block_start.data(), dquery_start.get(),
      dblock_start.get(), dids.get(), dlast.get()};
  for (bool graph : {false, true}) {
    check(cudaMemset(out.get(), 0xff, out.size() * 2), "poison");
    attention.plan(batch, graph, nullptr);
    attention.run(dqkv.get(), width, cache, layer, scale, out.get(), nullptr);
    expect_want(graph ? "attention, graph plan" : "attention");
  }
  if (tokens > sequences) return;
  std::vector<int> contexts;
  for (int position : positions) contexts.push_back(position + 1);
  const DeviceBuffer<int> dcontexts(contexts);
  const DecodeShape shape{c.heads, c.kv_heads, D};
  const DecodeBatch decode{sequences, dcontexts.get(), dblock_start.get(), dids.get()};
  for (int repeat = 0; repeat < 3; ++repeat) {
    check(cudaMemset(out.get(), 0xff, out.size() * 2), "poison");
    decode_attention(dqkv.get(), width, decode, shape, cache, layer, scale, out.get(), nullptr);
    expect_want("decode_attention");
  }
}
std::vector<std::pair<int, int>> many_sequences(int count) {
  std::vector<std::pair<int, int>> sequences;
  for (int i = 0; i < count; ++i) sequences.emplace_back(i * i * 53 % 700, 1);
  return sequences;
}
INSTANTIATE_TEST_SUITE_P(
    Shapes, AttentionPath,
    testing::Values(
        AttentionCase{32, 4, 128, 128, 16, {{300, 1}, {0, 1}, {1000, 1}, {15, 1}, {16, 1}}, true},
        AttentionCase{32, 4, 128, 128, 32, {{3000, 1}}, true},
        AttentionCase{16, 2, 256, 64, 16, {{700, 1}, {3, 1}}, true},
        AttentionCase{8, 8, 64, 64, 16, {{100, 1}, {31, 1}, {2047, 1}}, false},
        AttentionCase{16, 8, 64, 64, 16, many_sequences(7), false},   // large blocks, one piece
        AttentionCase{8, 4, 128, 128, 16, many_sequences(37), true},  // small blocks
        AttentionCase{32, 4, 128, 128, 16, many_sequences(9), true},  // a few pieces
        AttentionCase{32, 8, 128, 128, 16, {{0, 70}, {33, 1}, {100, 40}}, false},
        AttentionCase{16, 2, 256, 64, 16, {{200, 1}, {64, 30}}, true},
        AttentionCase{8, 2, 64, 64, 32, {{500, 1}, {0, 129}}, false}));

// Rows that only fill a captured graph's batch up: no context, no blocks, and zeros come out.
TEST(DecodeAttention, NoContextGivesZerosAndBlocksKeepNothing) {
  SKIP_WITHOUT_GPU();
  Random random(3);
  for (const int sequences : {1, 3, 50}) {
    const DecodeShape shape{32, 4, 128};
    KvCache cache{nullptr, {1, 4, 128, 16, DType::kBf16}};
    DeviceBuffer<bf16> arena(random_bf16(random, cache.layout.block_stride(), 1.0));
    cache.arena = arena.get();
    // The middle one alone has a context; what lies behind it is not a number.
    std::vector<int> context(sequences), block_start(sequences + 1);
    context[sequences / 2] = 5;
    for (int head = 0; head < 4; ++head) {
      for (const int64_t from : {cache.layout.k_offset(0, head, 5),
                                 cache.layout.k_offset(0, head, 5) + cache.layout.v_offset()})
        check(cudaMemset(arena.get() + from, 0xff, size_t{11} * 128 * 2), "NaN");
    }
    for (int s = sequences / 2; s < sequences; ++s) block_start[s + 1] = 1;
    const DeviceBuffer<int> dcontext(context), dstart(block_start), dids(std::vector<int>{0});
    const size_t width = size_t{32} * 128;
    const DeviceBuffer<bf16> q(random_bf16(random, sequences * width, 1.0));
    DeviceBuffer<bf16> out(sequences * width);
    check(cudaMemset(out.get(), 0xff, out.size() * 2), "poison");
    decode_attention(q.get(), static_cast<int64_t>(width),
                     {sequences, dcontext.get(), dstart.get(), dids.get()}, shape, cache, 0, 0.1f,
                     out.get(), nullptr);
    const auto got = out.to_host();
    for (int s = 0; s < sequences; ++s)
      for (size_t i = 0; i < width; ++i) {
        const float value = __bfloat162float(got[s * width + i]);
        ASSERT_TRUE(s == sequences / 2 ? std::isfinite(value) : value == 0.0f)
            << "of " << sequences << " sequences, " << s << " at " << i << ": " << value;
      }
    const auto row = got.begin() + static_cast<ptrdiff_t>(sequences / 2 * width);
    ASSERT_TRUE(std::any_of(row, row + static_cast<ptrdiff_t>(width),
                            [](bf16 v) { return __bfloat162float(v) != 0.0f; }));
  }
}

}  // namespace
}  // namespace vamp::cuda
