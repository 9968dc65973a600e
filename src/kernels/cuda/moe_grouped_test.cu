// The experts' products of many tokens against the CPU ops in f32. Without a GPU every test says so
// and is skipped.
#include <algorithm>
#include <numeric>

#include "kernels/cuda/cuda_test_support.h"
#include "kernels/cuda/moe_grouped.h"
#include "kernels/cuda/moe_routing.h"

namespace vamp::cuda {
namespace {

using test::Tensor;

// What `work` captured on a stream launches.
class Graph {
 public:
  template <typename F>
  explicit Graph(const F& work) {
    check(cudaStreamCreate(&stream_), "cudaStreamCreate");
    cudaGraph_t graph;
    check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "capture");
    work(stream_);
    check(cudaStreamEndCapture(stream_, &graph), "capture");
    check(cudaGraphInstantiate(&exec_, graph, 0), "cudaGraphInstantiate");
    cudaGraphDestroy(graph);
  }
  ~Graph() {
    cudaGraphExecDestroy(exec_);
    cudaStreamDestroy(stream_);
  }
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  void launch() const {
    check(cudaGraphLaunch(exec_, stream_), "cudaGraphLaunch");
    check(cudaStreamSynchronize(stream_), "running a graph");
  }

 private:
  cudaStream_t stream_;
  cudaGraphExec_t exec_;
};

struct GroupedMoeCase {
  int tokens, experts, top_k, hidden, intermediate;
  int favoured;  // so many experts get all tokens; 0: all alike
  int padding;   // elements between experts
};
class GroupedMoe : public testing::TestWithParam<GroupedMoeCase> {};

TEST_P(GroupedMoe, MatchesTheCpu) {
  SKIP_WITHOUT_GPU();
  const GroupedMoeCase c = GetParam();
  const MoeShape shape{c.experts, c.top_k, c.hidden, c.intermediate};
  Random random(static_cast<uint64_t>(c.tokens * 31 + c.experts));
  const auto T = static_cast<size_t>(c.tokens), E = static_cast<size_t>(c.experts),
             H = static_cast<size_t>(c.hidden), I = static_cast<size_t>(c.intermediate),
             padding = static_cast<size_t>(c.padding), pairs = T * static_cast<size_t>(c.top_k);
  const Tensor x = Tensor::random(DType::kBf16, T * H, random);
  const Tensor gate_up =
      Tensor::random(DType::kBf16, E * (2 * I * H + padding), random, 1 / std::sqrt(c.hidden));
  const Tensor down =
      Tensor::random(DType::kBf16, E * (I * H + padding), random, 1 / std::sqrt(c.intermediate));
  const Tensor residual = Tensor::random(DType::kBf16, T * H, random);
  const Tensor norm = Tensor::random(DType::kF32, H, random);
  std::vector<float> logits(T * E);
  for (size_t i = 0; i < logits.size(); ++i) {
    const bool favoured = i % E < static_cast<size_t>(c.favoured);
    logits[i] = static_cast<float>(random.normal()) + (favoured ? 50.0f : 0.0f);
  }
  MoeWeights weights{gate_up.data(), down.data(), (2 * I * H + padding) * 2, (I * H + padding) * 2,
                     DType::kBf16};

  // CPU: f32 all the way.
  const auto ops = cpu();
  std::vector<int32_t> experts(pairs), start(E + 1), sorted(pairs), all(E);
  std::vector<float> shares(pairs);
  const MoeRouting routed{experts.data(), shares.data(), start.data(), sorted.data()};
  ops->route(logits.data(), c.tokens, shape, true, routed);
  std::iota(all.begin(), all.end(), 0);
  std::vector<std::byte> workspace(ops->moe_workspace_bytes(c.tokens, shape));
  Tensor want = widened(residual), normed(DType::kF32, T * H);
  const Tensor wide = widened(x);
  ops->moe_experts(wide.data(), c.tokens, shape, weights, routed, all, workspace.data());
  ops->moe_combine(workspace.data(), c.tokens, shape, routed, want.data());
  const NormWeight norm_weight{static_cast<const float*>(norm.data()), 1e-6f, true};
  ops->rms_norm(want.data(), c.tokens, c.hidden, norm_weight, normed.data());

  const OnDevice dx(x), dgate_up(gate_up), ddown(down), dresidual(residual), dnorm(norm),
      activation(poison(DType::kBf16, std::max<size_t>(1, pairs * I))),
      y(poison(DType::kBf16, std::max<size_t>(1, pairs * H))), out(poison(DType::kBf16, T * H));
  const DeviceBuffer<float> dlogits(logits);
  const RoutingBuffers lists(c.tokens, c.experts, c.top_k);
  weights.gate_up = dgate_up.bf();
  weights.down = ddown.bf();
  const auto run = [&](int tokens, bool in_place, cudaStream_t s = nullptr) {
    route(dlogits.get(), lists.view(), tokens, c.experts, c.top_k, true, s);
    moe_grouped_experts(dx.bf(), tokens, shape, weights, lists.view(), activation.bf(), y.bf(), s,
                        {}, in_place);
  };
  run(c.tokens, false);
  moe_grouped_combine_rms_norm(y.bf(), c.tokens, shape, lists.view(), dresidual.bf(),
                               {dnorm.f32(), 1e-6f, true}, out.bf(), nullptr);
  // Rounded: the activation, y, the residual. Values of about 1, in sums of as many of them.
  expect_near(dresidual.back(), want, 4, 1.0f);
  const Tensor got = out.back();
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], normed[i], 5 * 0x1p-9f * (std::abs(normed[i]) + 1 + std::abs(norm[i % H])))
        << i;

  // In two parts, as when some experts are staged: the same bits.
  const Tensor together = y.back();
  for (const int first : {0, c.experts / 2, c.experts}) {
    const DeviceBuffer<int32_t> border(std::vector<int32_t>{first});
    const OnDevice parts_y(poison(DType::kBf16, std::max<size_t>(1, pairs) * H));
    for (const bool from : {true, false}) {
      moe_grouped_experts(dx.bf(), c.tokens, shape, weights, lists.view(), activation.bf(),
                          parts_y.bf(), nullptr, {border.get(), from});
    }
    EXPECT_EQ(parts_y.back().bits(0, pairs * H), together.bits(0, pairs * H)) << first;
  }

  // The first tokens alone give the bits they gave among all.
  const int some = c.tokens / 3;
  run(some, true);
  const size_t count = static_cast<size_t>(some * c.top_k) * H;
  EXPECT_EQ(y.back().bits(0, count), together.bits(0, count));

  // Launches in a row in a graph, with weights asked for ahead: the same bits however often.
  const Graph graph([&](cudaStream_t s) {
    for (const int tokens : {some, 0, c.tokens}) run(tokens, true, s);
  });
  for (int i = 0; i < 20; ++i) {
    check(cudaMemset(y.bf(), 0xff, pairs * H * 2), "poison");
    check(cudaMemset(activation.bf(), 0xff, pairs * I * 2), "poison");
    graph.launch();
    ASSERT_EQ(y.back().bits(0, pairs * H), together.bits(0, pairs * H)) << "replay " << i;
  }
  EXPECT_EQ(lists.progress.to_host(), std::vector<int>(moe_progress_size(c.experts)));
}
INSTANTIATE_TEST_SUITE_P(
    Shapes, GroupedMoe,
    testing::Values(
        GroupedMoeCase{0, 8, 2, 64, 64, 0, 0}, GroupedMoeCase{1, 8, 2, 64, 64, 0, 0},
        GroupedMoeCase{7, 8, 2, 128, 256, 0, 0}, GroupedMoeCase{300, 16, 4, 256, 192, 0, 0},
        GroupedMoeCase{333, 8, 2, 512, 128, 1, 0}, GroupedMoeCase{50, 512, 10, 128, 64, 0, 32},
        GroupedMoeCase{200, 5, 3, 72, 48, 0, 8}, GroupedMoeCase{150, 4, 4, 200, 136, 0, 0},
        GroupedMoeCase{1000, 128, 8, 320, 96, 4, 0}, GroupedMoeCase{90, 2, 1, 2048, 768, 2, 0},
        GroupedMoeCase{48, 512, 10, 256, 256, 0, 0}, GroupedMoeCase{600, 24, 4, 192, 768, 4, 0},
        GroupedMoeCase{40, 64, 2, 128, 768, 2, 0}, GroupedMoeCase{150, 24, 4, 192, 256, 3, 0},
        GroupedMoeCase{16, 513, 11, 256, 256, 0, 0}, GroupedMoeCase{64, 1024, 2, 128, 64, 0, 0},
        GroupedMoeCase{500, 777, 4, 64, 128, 0, 16}));

// Holds a multiprocessor a block until *release, or for ten seconds and says so.
__global__ void hold_kernel(const volatile int* release, volatile int* gave_up,
                            volatile int* started) {
  started[blockIdx.x] = 1;
  uint64_t begin, now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
  do {
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  } while (*release == 0 && now - begin < 10'000'000'000);
  if (*release == 0) *gave_up = 1;
}

// Other work may keep some multiprocessors for long: the blocks that run do all tiles.
TEST(GroupedMoeCrowded, EndsOnTheMultiprocessorsThatAreFree) {
  SKIP_WITHOUT_GPU();
  constexpr int kTokens = 60, E = 32, H = 256, I = 640, kTopK = 4;
  Random random(12);
  const OnDevice x(Tensor::random(DType::kBf16, size_t{kTokens} * H, random)),
      gate_up(Tensor::random(DType::kBf16, size_t{E} * 2 * I * H, random, 1.0 / 16)),
      down(Tensor::random(DType::kBf16, size_t{E} * I * H, random, 1.0 / 25)),
      activation(poison(DType::kBf16, size_t{kTokens} * kTopK * I)),
      y(poison(DType::kBf16, size_t{kTokens} * kTopK * H));
  std::vector<float> logits(size_t{kTokens} * E);
  for (float& l : logits) l = static_cast<float>(random.normal());
  const DeviceBuffer<float> dlogits(logits);
  const RoutingBuffers lists(kTokens, E, kTopK);
  const MoeShape shape{E, kTopK, H, I};
  const MoeWeights weights{gate_up.bf(), down.bf(), size_t{4} * I * H, size_t{2} * I * H,
                           DType::kBf16};
  const auto run = [&](cudaStream_t s) {
    route(dlogits.get(), lists.view(), kTokens, E, kTopK, true, s);
    moe_grouped_experts(x.bf(), kTokens, shape, weights, lists.view(), activation.bf(), y.bf(), s,
                        {}, true);
  };
  run(nullptr);
  const Tensor want = y.back();
  check(cudaMemset(y.bf(), 0xff, want.size() * 2), "poison");

  int sms = 0;
  check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0), "device attributes");
  constexpr int kBytes = 200 * 1024;
  check(cudaFuncSetAttribute(hold_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "shared memory");
  const int held = sms - 20;
  int* shared;  // release, gave up, started of each block
  const size_t ints = 2 + static_cast<size_t>(held);
  check(cudaMallocHost(&shared, ints * sizeof(int)), "cudaMallocHost");
  std::fill_n(shared, ints, 0);
  cudaStream_t holder, stream;
  check(cudaStreamCreateWithFlags(&holder, cudaStreamNonBlocking), "cudaStreamCreate");
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
  hold_kernel<<<held, 32, kBytes, holder>>>(shared, shared + 1, shared + 2);
  check_launch("hold_kernel");
  for (size_t i = 2; i < ints; ++i) {
    while (static_cast<volatile int*>(shared)[i] == 0) {
    }
  }
  run(stream);
  check(cudaStreamSynchronize(stream), "the experts");
  static_cast<volatile int*>(shared)[0] = 1;
  check(cudaStreamSynchronize(holder), "hold_kernel");
  EXPECT_EQ(shared[1], 0) << "the experts ended only after what ran beside them";
  EXPECT_EQ(y.back().bits(), want.bits());
  cudaFreeHost(shared);
  cudaStreamDestroy(holder);
  cudaStreamDestroy(stream);
}

// An expert's place in its matrices may lie beyond 2 and 4 GiB.
TEST(GroupedMoeFarApart, TheLastExpertIsReadWhereItLies) {
  SKIP_WITHOUT_GPU();
  constexpr int kTokens = 40, H = 256, I = 128, kPlaces[] = {1, 7};
  constexpr size_t kStride = size_t{700} << 20;
  Random random(11);
  const Tensor x = Tensor::random(DType::kBf16, size_t{kTokens} * H, random);
  const Tensor gate_up = Tensor::random(DType::kBf16, size_t{2} * I * H, random, 1.0 / 16);
  const Tensor down = Tensor::random(DType::kBf16, size_t{I} * H, random, 1.0 / 11);
  const OnDevice dx(x);
  const DeviceBuffer<char> far(8 * kStride);
  const GroupedMoeCase c{kTokens, 8, 1, H, I, 0, 0};
  const MoeShape shape{8, 1, H, I};
  std::vector<Tensor> results;
  for (const int expert : kPlaces) {
    char* const place = far.get() + static_cast<size_t>(expert) * kStride;
    const size_t gate_up_bytes = gate_up.size() * 2;
    check(cudaMemcpy(place, gate_up.data(), gate_up_bytes, cudaMemcpyHostToDevice), "copy");
    check(cudaMemcpy(place + gate_up_bytes, down.data(), down.size() * 2, cudaMemcpyHostToDevice),
          "copy");
    std::vector<float> logits(size_t{kTokens} * 8, 0.0f);
    for (size_t t = 0; t < kTokens; ++t) logits[t * 8 + static_cast<size_t>(expert)] = 9;
    const DeviceBuffer<float> dlogits(logits);
    const RoutingBuffers lists(c.tokens, c.experts, c.top_k);
    route(dlogits.get(), lists.view(), kTokens, 8, 1, true, nullptr);
    const MoeWeights weights{far.get(), far.get() + gate_up_bytes, kStride, kStride, DType::kBf16};
    const OnDevice activation(poison(DType::kBf16, size_t{kTokens} * I)),
        y(poison(DType::kBf16, size_t{kTokens} * H));
    moe_grouped_experts(dx.bf(), kTokens, shape, weights, lists.view(), activation.bf(), y.bf(),
                        nullptr);
    results.push_back(activation.back());
    results.push_back(y.back());
  }
  EXPECT_EQ(results[0].bits(), results[2].bits()) << "gate and up";
  EXPECT_EQ(results[1].bits(), results[3].bits()) << "down";
}

}  // namespace
}  // namespace vamp::cuda
