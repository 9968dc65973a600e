// The small CUDA ops against the CPU ops or the formula in double. Without a GPU every test says so
// and is skipped.
#include "kernels/cuda/elementwise.h"

#include "kernels/cuda/cuda_test_support.h"

namespace vamp::cuda {
namespace {

using test::Tensor;

class Elementwise : public testing::Test {
 protected:
  void SetUp() override { SKIP_WITHOUT_GPU(); }
  Random random_{5};
};

float sigmoid(float x) {
  return 1 / (1 + std::exp(-x));
}

TEST_F(Elementwise, EmbedCopiesTheRows) {
  const Tensor table = Tensor::random(DType::kBf16, size_t{7} * 2056, random_);
  const std::vector<TokenId> ids{3, 0, 6, 3};
  const OnDevice dtable(table), out(Tensor(DType::kBf16, ids.size() * 2056));
  const DeviceBuffer<TokenId> dids(ids);
  embed(dtable.bf(), 2056, dids.get(), 4, out.bf(), nullptr);
  const Tensor got = out.back();
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_EQ(got[i], table[static_cast<size_t>(ids[i / 2056]) * 2056 + i % 2056]) << i;
}

TEST_F(Elementwise, SiluAndMulWithAndWithoutAGate) {
  for (const auto& [rows, width, gated] :
       {std::tuple{3, 512, true}, {1, 1032, false}, {200, 64, true}, {0, 64, false}}) {
    const auto W = static_cast<size_t>(width), stride = 2 * W + 8, R = static_cast<size_t>(rows);
    const Tensor in = Tensor::random(DType::kBf16, std::max<size_t>(1, R) * stride, random_);
    const OnDevice din(in), out(Tensor(DType::kBf16, std::max<size_t>(1, R) * W));
    silu_and_mul(din.bf(), static_cast<int64_t>(stride), rows, width, gated, out.bf(), nullptr);
    const Tensor got = out.back();
    for (size_t i = 0; i < R * W; ++i) {
      const size_t row = i / W * stride;
      const float gate = in[row + i % W], want = gate * sigmoid(gate) * in[row + W + i % W] *
                                                 (gated ? sigmoid(in[row + 2 * W]) : 1.0f);
      ASSERT_NEAR(got[i], want, 0x1p-8f * std::abs(want) + 1e-6f) << rows << " rows, at " << i;
    }
  }
}

TEST_F(Elementwise, MultiplySigmoid) {
  const size_t rows = 5, width = 4096, stride = 9216;
  const Tensor x = Tensor::random(DType::kBf16, rows * width, random_);
  const Tensor gate = Tensor::random(DType::kBf16, rows * stride, random_);
  const OnDevice dx(x), dgate(gate);
  multiply_sigmoid(dx.bf(), dgate.bf(), stride, rows, width, nullptr);
  const Tensor got = dx.back();
  for (size_t i = 0; i < got.size(); ++i) {
    const float want = x[i] * sigmoid(gate[i / width * stride + i % width]);
    ASSERT_NEAR(got[i], want, 0x1p-8f * std::abs(want) + 1e-6f) << i;
  }
}

TEST_F(Elementwise, RopeAnglesAsOnTheCpuUpToA128kContext) {
  RopeConfig config;
  config.theta = 1e7;
  const RopeFrequencies rope = make_rope_frequencies(config, 128);
  const std::vector<int32_t> positions{0, 1, 77, 4096, 131071};
  const auto half = static_cast<int>(rope.inv_freq.size());
  Tensor want(DType::kF32, positions.size() * 2 * rope.inv_freq.size());
  const auto cpu = make_cpu_ops({.threads = 0, .activation = DType::kF32, .isa = {}});
  cpu->rope_angles(rope, positions.data(), 5, static_cast<float*>(want.data()));
  const DeviceBuffer<float> inv_freq(rope.inv_freq);
  const DeviceBuffer<int32_t> dpositions(positions);
  const OnDevice out(Tensor(DType::kF32, want.size()));
  rope_angles(inv_freq.get(), half, rope.attention_factor, dpositions.get(), 5, out.f32(), nullptr);
  const Tensor got = out.back();
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], want[i], 2e-6f) << i;
}

}  // namespace
}  // namespace vamp::cuda
