// Routing and the experts' products of few tokens against plain double-precision loops on the host.
// Without a GPU every test says so and is skipped.
#include <algorithm>
#include <numeric>

#include "kernels/cuda/cuda_test_support.h"
#include "kernels/cuda/moe_routing.h"
#include "kernels/cuda/moe_skinny.h"
#include "kernels/cuda/norm.h"

namespace vamp::cuda {
namespace {

using bf16 = __nv_bfloat16;

struct RouteCase {
  int T, E, top_k;
  bool renormalise, ties, one_expert, shared = false;
};
class Route : public testing::TestWithParam<RouteCase> {};

TEST_P(Route, MatchesHost) {
  SKIP_WITHOUT_GPU();
  const RouteCase c = GetParam();
  Random random(static_cast<uint64_t>(c.T * 7919 + c.E));
  std::vector<float> logits(static_cast<size_t>(c.T) * c.E);
  for (size_t i = 0; i < logits.size(); ++i) {
    logits[i] =
        c.ties ? static_cast<float>(random.below(4)) : static_cast<float>(random.normal() * 2);
    if (c.one_expert) logits[i] = i % c.E == static_cast<size_t>(c.E - 1) ? 20.0f : logits[i];
  }
  const DeviceBuffer<float> device_logits(logits);
  RoutingBuffers buffers(c.T, c.E, c.top_k);
  for (int repeat = 0; repeat < 2; ++repeat)
    route(device_logits.get(), buffers.view(), c.T, c.E, c.top_k, c.renormalise, nullptr, c.shared);
  const auto experts = buffers.experts.to_host(), pairs = buffers.pairs.to_host(),
             start = buffers.start.to_host();
  const auto work = buffers.work.to_host();
  const auto weights = buffers.weights.to_host();
  const auto counts = buffers.counts.to_host();
  std::vector<std::vector<int>> by_expert(c.E);
  for (int t = 0; t < c.T; ++t) {
    const float* row = &logits[static_cast<size_t>(t) * c.E];
    const int first = c.shared ? 1 : 0, chosen_slots = c.top_k - first;
    std::vector<int> order(c.E - first);
    std::iota(order.begin(), order.end(), first);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return row[a] > row[b]; });
    double all = 0, chosen = 0;
    for (int e = first; e < c.E; ++e) all += std::exp(static_cast<double>(row[e]) - row[order[0]]);
    for (int k = 0; k < chosen_slots; ++k)
      chosen += std::exp(static_cast<double>(row[order[k]]) - row[order[0]]);
    if (c.shared) {
      const int pair = (t + 1) * c.top_k - 1;
      ASSERT_EQ(experts[pair], 0);
      ASSERT_NEAR(weights[pair], 1 / (1 + std::exp(-row[0])), 1e-5);
      by_expert[0].push_back(pair);
    }
    for (int k = 0; k < chosen_slots; ++k) {
      const int pair = t * c.top_k + k;
      ASSERT_EQ(experts[pair], order[k]) << "token " << t << " slot " << k;
      const double p = std::exp(static_cast<double>(row[order[k]]) - row[order[0]]) /
                       (c.renormalise ? chosen : all);
      ASSERT_NEAR(weights[pair], p, p * 1e-5);
      by_expert[order[k]].push_back(pair);
    }
  }
  size_t items = 0;
  int at = 0;
  for (int e = 0; e < c.E; ++e) {
    ASSERT_EQ(start[e], at);
    for (int pair : by_expert[e]) ASSERT_EQ(pairs[at++], pair);
    for (int left = static_cast<int>(by_expert[e].size()), first = start[e]; left > 0; ++items) {
      ASSERT_EQ(work[items].expert, e);
      ASSERT_EQ(work[items].first, first);
      ASSERT_EQ(work[items].count, std::min(left, kRoutingWorkTokens));
      first += work[items].count;
      left -= work[items].count;
    }
    ASSERT_EQ(counts[e], 2 * by_expert[e].size()) << "counts add up over calls";
  }
  ASSERT_EQ(start[c.E], at);
  const auto work_start = buffers.work_start.to_host();
  for (int e = 0, item = 0; e <= c.E; ++e) {
    ASSERT_EQ(work_start[e], item) << "expert " << e;
    if (e < c.E)
      item += (static_cast<int>(by_expert[e].size()) + kRoutingWorkTokens - 1) / kRoutingWorkTokens;
  }
  ASSERT_EQ(buffers.num_work.to_host()[0], static_cast<int>(items));
}
INSTANTIATE_TEST_SUITE_P(
    Shapes, Route,
    testing::Values(
        RouteCase{0, 8, 2, true, false, false}, RouteCase{1, 128, 8, true, false, false},
        RouteCase{64, 128, 8, true, false, false}, RouteCase{65, 128, 8, false, false, false},
        RouteCase{48, 512, 10, true, false, false}, RouteCase{1000, 512, 10, true, false, false},
        RouteCase{24, 128, 8, true, false, false}, RouteCase{25, 128, 8, true, false, false},
        RouteCase{512, 1024, 16, true, false, false}, RouteCase{513, 128, 8, true, false, false},
        RouteCase{16384, 128, 16, true, false, false}, RouteCase{9001, 256, 8, false, true, false},
        RouteCase{33, 8, 2, true, true, false}, RouteCase{300, 60, 4, true, true, false},
        RouteCase{40, 16, 4, true, false, true}));

struct MoeCase {
  int T, E, top_k, H, I;
  bool one_expert;
};
class MoeSkinny : public testing::TestWithParam<MoeCase> {};

TEST_P(MoeSkinny, MatchesHost) {
  SKIP_WITHOUT_GPU();
  const MoeCase c = GetParam();
  Random random(static_cast<uint64_t>(c.T * 31 + c.E));
  const auto x = random_bf16(random, static_cast<size_t>(c.T) * c.H, 1.0);
  const auto gate_up =
      random_bf16(random, static_cast<size_t>(c.E) * 2 * c.I * c.H, 1.0 / std::sqrt(c.H));
  const auto down = random_bf16(random, static_cast<size_t>(c.E) * c.H * c.I, 1.0 / std::sqrt(c.I));
  const auto residual = random_bf16(random, static_cast<size_t>(c.T) * c.H, 1.0);
  std::vector<float> logits(static_cast<size_t>(c.T) * c.E);
  for (size_t i = 0; i < logits.size(); ++i)
    logits[i] = c.one_expert && i % c.E < static_cast<size_t>(c.top_k)
                    ? 9.0f
                    : static_cast<float>(random.normal());
  const DeviceBuffer<bf16> dx(x), dgu(gate_up), dd(down);
  DeviceBuffer<bf16> dresidual(residual), activation(static_cast<size_t>(c.T) * c.top_k * c.I);
  DeviceBuffer<float> y(static_cast<size_t>(c.T) * c.top_k * c.H);
  const DeviceBuffer<float> dlogits(logits);
  RoutingBuffers buffers(c.T, c.E, c.top_k);
  const Routing routing = buffers.view();
  const MoeShape shape{c.E, c.top_k, c.H, c.I};
  const MoeWeights weights{dgu.get(), dd.get(), static_cast<size_t>(c.I) * c.H * 4,
                           static_cast<size_t>(c.I) * c.H * 2, DType::kBf16};
  check(cudaMemset(activation.get(), 0xff, activation.size() * 2), "poison");
  check(cudaMemset(y.get(), 0xff, y.size() * 4), "poison");
  route(dlogits.get(), routing, c.T, c.E, c.top_k, true, nullptr);
  moe_skinny_gate_up(dx.get(), c.T, shape, weights, routing, activation.get(), nullptr);
  moe_skinny_down(activation.get(), c.T, shape, weights, routing, y.get(), nullptr);
  const std::vector<float> together = y.to_host();
  moe_combine_rms_norm(y.get(), c.T, shape, routing, dresidual.get(), {}, nullptr, nullptr);
  for (const int first : {0, c.E / 2, c.E}) {  // in two parts: the same bits
    const DeviceBuffer<int32_t> border(std::vector<int32_t>{first});
    check(cudaMemset(y.get(), 0xff, y.size() * 4), "poison");
    for (const bool from : {true, false}) {
      moe_skinny_gate_up(dx.get(), c.T, shape, weights, routing, activation.get(), nullptr,
                         {border.get(), from});
      moe_skinny_down(activation.get(), c.T, shape, weights, routing, y.get(), nullptr,
                      {border.get(), from});
    }
    ASSERT_EQ(y.to_host(), together) << first;
  }
  const auto experts = buffers.experts.to_host();
  const auto w = buffers.weights.to_host();
  const auto act = activation.to_host();
  std::vector<double> want(residual.size());
  for (int t = 0; t < c.T; ++t) {
    for (int h = 0; h < c.H; ++h) want[t * c.H + h] = __bfloat162float(residual[t * c.H + h]);
    for (int k = 0; k < c.top_k; ++k) {
      const int pair = t * c.top_k + k;
      const bf16* gu = &gate_up[static_cast<size_t>(experts[pair]) * 2 * c.I * c.H];
      std::vector<double> a(c.I);
      for (int i = 0; i < c.I; ++i) {
        double g = 0, u = 0;
        for (int h = 0; h < c.H; ++h) {
          const double v = __bfloat162float(x[t * c.H + h]);
          g += v * __bfloat162float(gu[static_cast<size_t>(i) * c.H + h]);
          u += v * __bfloat162float(gu[static_cast<size_t>(i + c.I) * c.H + h]);
        }
        a[i] = g / (1 + std::exp(-g)) * u;
        const double got = __bfloat162float(act[static_cast<size_t>(pair) * c.I + i]);
        ASSERT_NEAR(got, a[i], std::abs(a[i]) * 0x1p-7 + 1e-4) << "pair " << pair << " i " << i;
        a[i] = got;  // the product below is checked on its own
      }
      const bf16* d = &down[static_cast<size_t>(experts[pair]) * c.H * c.I];
      for (int h = 0; h < c.H; ++h) {
        double sum = 0;
        for (int i = 0; i < c.I; ++i)
          sum += a[i] * __bfloat162float(d[static_cast<size_t>(h) * c.I + i]);
        want[t * c.H + h] += w[pair] * sum;
      }
    }
  }
  expect_close(dresidual.to_host(), want, 1.0);
}
INSTANTIATE_TEST_SUITE_P(
    Shapes, MoeSkinny,
    testing::Values(MoeCase{1, 16, 4, 256, 64, false}, MoeCase{1, 8, 8, 2048, 768, false},
                    MoeCase{8, 32, 4, 512, 96, false}, MoeCase{4, 16, 3, 2048, 768, false},
                    MoeCase{21, 8, 2, 2048, 768, true}, MoeCase{9, 16, 2, 2048, 512, false},
                    MoeCase{2, 4, 2, 4096, 1536, false}, MoeCase{20, 16, 2, 72, 48, true},
                    MoeCase{64, 16, 4, 128, 32, false}));

}  // namespace
}  // namespace vamp::cuda
