#include <algorithm>
#include <numeric>

#include "kernels/test_support.h"

namespace vamp::test {
namespace {

struct Routed {
  std::vector<int32_t> experts, start, pairs;
  std::vector<float> weights;
  MoeRouting view() { return {experts.data(), weights.data(), start.data(), pairs.data()}; }
};

Routed route(Ops& ops, const MoeShape& shape, const std::vector<float>& logits, bool renormalise) {
  const size_t tokens = logits.size() / static_cast<size_t>(shape.experts);
  const size_t pairs = tokens * static_cast<size_t>(shape.top_k);
  Routed r{std::vector<int32_t>(pairs),
           std::vector<int32_t>(static_cast<size_t>(shape.experts) + 1),
           std::vector<int32_t>(pairs), std::vector<float>(pairs)};
  ops.route(logits.data(), static_cast<int>(tokens), shape, renormalise, r.view());
  return r;
}

class MoeTest : public KernelsTest {
 protected:
  struct Layer {
    MoeShape shape;
    Tensor gate_up, down;
    MoeWeights weights() const {
      const size_t width = gate_up.width();
      const auto expert =
          static_cast<size_t>(shape.intermediate) * static_cast<size_t>(shape.hidden);
      return {gate_up.data(), down.data(), (2 * expert + 6) * width, (expert + 3) * width,
              gate_up.dtype()};
    }
  };
  // Strides are padded, as expert groups are.
  Layer layer(const MoeShape& s, DType type) {
    const auto expert = static_cast<size_t>(s.intermediate) * static_cast<size_t>(s.hidden);
    const auto experts = static_cast<size_t>(s.experts);
    return {s, Tensor::random(type, experts * (2 * expert + 6), random_, 0.3),
            Tensor::random(type, experts * (expert + 3), random_, 0.3)};
  }

  std::vector<float> random_logits(size_t count) {
    std::vector<float> logits(count);
    for (float& x : logits) x = static_cast<float>(random_.normal());
    return logits;
  }

  // residual (zeros) + experts, with the subsets in order.
  std::string run(Ops& ops, const Layer& l, const Tensor& x, Routed& routed,
                  const std::vector<std::vector<int32_t>>& subsets, std::vector<float>* out) {
    const int tokens = static_cast<int>(x.size()) / l.shape.hidden;
    std::vector<std::byte> workspace(ops.moe_workspace_bytes(tokens, l.shape));
    for (const auto& subset : subsets) {
      ops.moe_experts(x.data(), tokens, l.shape, l.weights(), routed.view(), subset,
                      workspace.data());
    }
    out->assign(x.size(), 0.0f);
    ops.moe_combine(workspace.data(), tokens, l.shape, routed.view(), out->data());
    return {reinterpret_cast<const char*>(out->data()), out->size() * sizeof(float)};
  }
};

std::vector<int32_t> all_experts(int n) {
  std::vector<int32_t> ids(static_cast<size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

TEST_P(MoeTest, RouteTakesTheBestAndTiesGoToTheLowerId) {
  const MoeShape shape{4, 2, 8, 8};
  const auto ops = GetParam().make();
  Routed r = route(*ops, shape, {0, 1, 1, -1, /**/ 2, 2, 2, 2, /**/ -50, -40, -60, -41}, false);
  EXPECT_EQ(r.experts, (std::vector<int32_t>{1, 2, 0, 1, 1, 3}));
  const double sum = 1 + 2 * std::exp(1.0) + std::exp(-1.0);
  EXPECT_NEAR(r.weights[0], std::exp(1.0) / sum, 1e-6);
  EXPECT_NEAR(r.weights[2], 0.25, 1e-6);
  EXPECT_EQ(r.start, (std::vector<int32_t>{0, 1, 4, 5, 6}));
  EXPECT_EQ(r.pairs, (std::vector<int32_t>{2, 0, 3, 4, 1, 5}));
  r = route(*ops, shape, {0, 1, 1, -1}, true);
  EXPECT_NEAR(r.weights[0], 0.5, 1e-6);
  EXPECT_NEAR(r.weights[1], 0.5, 1e-6);
}

TEST_P(MoeTest, RouteSurvivesNaN) {
  const MoeShape shape{4, 3, 8, 8};
  Routed r = route(*GetParam().make(), shape, {0, NAN, 1, NAN}, true);
  std::sort(r.experts.begin(), r.experts.end());
  EXPECT_TRUE(std::adjacent_find(r.experts.begin(), r.experts.end()) == r.experts.end());
  EXPECT_GE(r.experts.front(), 0);
  EXPECT_LT(r.experts.back(), 4);
}

TEST_P(MoeTest, MatchesTheReference) {
  struct Case {
    MoeShape shape;
    int tokens;
  };
  for (const DType type : {DType::kBf16, DType::kF32}) {
    for (const Case& c : {Case{{5, 2, 48, 64}, 1}, Case{{5, 2, 48, 64}, 0}, Case{{6, 3, 33, 40}, 9},
                          Case{{3, 1, 64, 20}, 70}, Case{{16, 2, 32, 50}, 40}}) {
      const Layer l = layer(c.shape, type);
      const auto h = static_cast<size_t>(c.shape.hidden),
                 i = static_cast<size_t>(c.shape.intermediate);
      const Tensor x = Tensor::random(activation(), static_cast<size_t>(c.tokens) * h, random_);
      const auto ops = GetParam().make(2);
      Routed routed = route(*ops, c.shape,
                            random_logits(static_cast<size_t>(c.tokens * c.shape.experts)), true);
      std::vector<float> out;
      run(*ops, l, x, routed, {all_experts(c.shape.experts)}, &out);
      for (size_t t = 0; t < static_cast<size_t>(c.tokens); ++t) {
        std::vector<double> want(h, 0.0);
        for (size_t rank = 0; rank < static_cast<size_t>(c.shape.top_k); ++rank) {
          const size_t pair = t * static_cast<size_t>(c.shape.top_k) + rank;
          const auto e = static_cast<size_t>(routed.experts[pair]);
          const size_t gate = e * (2 * i * h + 6), up = gate + i * h, down = e * (i * h + 3);
          for (size_t n = 0; n < i; ++n) {
            double g = 0, u = 0;
            for (size_t k = 0; k < h; ++k) {
              g += static_cast<double>(x[t * h + k]) *
                   static_cast<double>(l.gate_up[gate + n * h + k]);
              u += static_cast<double>(x[t * h + k]) *
                   static_cast<double>(l.gate_up[up + n * h + k]);
            }
            const double hidden = g / (1 + std::exp(-g)) * u;
            for (size_t k = 0; k < h; ++k) {
              want[k] += static_cast<double>(routed.weights[pair]) * hidden *
                         static_cast<double>(l.down[down + k * i + n]);
            }
          }
        }
        for (size_t k = 0; k < h; ++k) {
          ASSERT_NEAR(out[t * h + k], want[k],
                      static_cast<double>(tolerance(std::abs(want[k]) + 8)))
              << "token " << t << " of " << c.tokens << ", column " << k;
        }
      }
    }
  }
}

// Any batch, any threads, experts in any subsets and order (resident first, staged later): same
// bits.
TEST_P(MoeTest, TokensDoNotDependOnBatchOrSubsets) {
  const MoeShape shape{7, 2, 64, 96};
  const int tokens = 60;
  const size_t h = 64;
  for (const DType type : {DType::kBf16, DType::kF32}) {
    const Layer l = layer(shape, type);
    const Tensor x = Tensor::random(activation(), tokens * h, random_);
    const std::vector<float> logits = random_logits(static_cast<size_t>(tokens * shape.experts));
    const auto single = GetParam().make(1), threaded = GetParam().make(3);
    std::string alone;
    std::vector<float> out;
    for (size_t t = 0; t < tokens; ++t) {
      Tensor row(activation(), h);
      std::memcpy(row.data(), x.at(t * h), h * row.width());
      Routed r = route(*single, shape,
                       {logits.begin() + static_cast<ptrdiff_t>(7 * t),
                        logits.begin() + static_cast<ptrdiff_t>(7 * t + 7)},
                       true);
      alone += run(*single, l, row, r, {all_experts(7)}, &out);
    }
    for (int round = 0; round < 10; ++round) {
      std::vector<int32_t> order = all_experts(7);
      for (size_t i = 6; i > 0; --i) std::swap(order[i], order[random_.below(i + 1)]);
      const auto cut = order.begin() + static_cast<ptrdiff_t>(random_.below(8));
      const size_t first = random_.below(tokens), count = 1 + random_.below(tokens - first);
      Tensor rows(activation(), count * h);
      std::memcpy(rows.data(), x.at(first * h), count * h * rows.width());
      Ops& ops = round % 2 ? *single : *threaded;
      Routed r = route(ops, shape,
                       {logits.begin() + static_cast<ptrdiff_t>(7 * first),
                        logits.begin() + static_cast<ptrdiff_t>(7 * (first + count))},
                       true);
      const std::string got =
          run(ops, l, rows, r, {{order.begin(), cut}, {cut, order.end()}}, &out);
      ASSERT_TRUE(got == alone.substr(first * h * 4, count * h * 4)) << first << " + " << count;
    }
  }
}

// All tokens to one expert, more than a block holds; the others are empty, and their weights
// absent.
TEST_P(MoeTest, EveryTokenToOneExpert) {
  const MoeShape shape{3, 1, 32, 64};
  const size_t tokens = GetParam().isa == CpuIsa::kScalar ? 100 : 7000;
  const Layer l = layer({1, 1, 32, 64}, DType::kBf16);
  std::vector<float> logits;
  for (size_t t = 0; t < tokens; ++t) logits.insert(logits.end(), {3, 0, 0});
  const Tensor x = Tensor::random(activation(), tokens * 32, random_);
  const auto ops = GetParam().make(2);
  Routed routed = route(*ops, shape, logits, true);
  std::vector<float> out, last;
  const Layer wide{shape, l.gate_up, l.down};
  run(*ops, wide, x, routed, {all_experts(3)}, &out);
  Tensor row(activation(), 32);
  std::memcpy(row.data(), x.at((tokens - 1) * 32), 32 * row.width());
  Routed one = route(*ops, shape, {3, 0, 0}, true);
  run(*ops, wide, row, one, {all_experts(3)}, &last);
  ASSERT_EQ(std::memcmp(last.data(), out.data() + (tokens - 1) * 32, 32 * sizeof(float)), 0);
}

VAMP_INSTANTIATE_KERNELS_TEST(MoeTest);

}  // namespace
}  // namespace vamp::test
