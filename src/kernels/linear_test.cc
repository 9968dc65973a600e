#include "kernels/test_support.h"

namespace vamp::test {
namespace {

class LinearTest : public KernelsTest {
 protected:
  // Exact products of inputs as stored, in double.
  static std::vector<double> reference(const Tensor& x, int64_t stride, int rows, const Tensor& w,
                                       int n, int k, const float* bias) {
    std::vector<double> out;
    for (int r = 0; r < rows; ++r) {
      for (int c = 0; c < n; ++c) {
        double sum = bias ? static_cast<double>(bias[c]) : 0.0;
        for (int i = 0; i < k; ++i) {
          sum += static_cast<double>(x[static_cast<size_t>(r * stride + i)]) *
                 static_cast<double>(
                     w[static_cast<size_t>(c) * static_cast<size_t>(k) + static_cast<size_t>(i)]);
        }
        out.push_back(sum);
      }
    }
    return out;
  }
};

struct Shape {
  int rows, n, k;
};
constexpr Shape kShapes[] = {{0, 16, 32},  {1, 1, 1},   {1, 8, 576},  {1, 48, 33},
                             {2, 17, 31},  {3, 16, 32}, {5, 64, 100}, {16, 33, 64},
                             {17, 40, 96}, {31, 7, 5},  {33, 32, 16}, {70, 50, 47}};

TEST_P(LinearTest, MatchesTheReferenceOverEdgeShapes) {
  for (const DType weight_type : {DType::kBf16, DType::kF16, DType::kF32}) {
    for (const Shape& s : kShapes) {
      SCOPED_TRACE(::testing::Message() << s.rows << "x" << s.n << "x" << s.k << " weights "
                                        << static_cast<int>(weight_type));
      const auto ops = GetParam().make();
      const int64_t stride = s.k + 3;
      const Tensor x = Tensor::random(activation(), static_cast<size_t>(s.rows * stride), random_);
      const Tensor w = Tensor::random(weight_type, static_cast<size_t>(s.n * s.k), random_, 0.5);
      std::vector<float> bias(static_cast<size_t>(s.n));
      for (float& b : bias) b = static_cast<float>(random_.normal());
      const size_t outs = static_cast<size_t>(s.rows * s.n);
      Tensor narrow(activation(), outs), sum(DType::kF32, outs);
      std::vector<float> wide(outs);
      for (size_t i = 0; i < outs; ++i) sum.set(i, 2.5f);
      const WeightMatrix matrix{w.data(), weight_type, s.n, s.k};
      const LinearPart parts[] = {
          {matrix, bias.data(), narrow.data(), s.n, LinearPart::Out::kActivation},
          {matrix, nullptr, wide.data(), s.n, LinearPart::Out::kFloat},
          {matrix, bias.data(), sum.data(), s.n, LinearPart::Out::kResidual}};
      ops->linear(x.data(), stride, s.rows, parts);
      const auto plain = reference(x, stride, s.rows, w, s.n, s.k, nullptr);
      const auto biased = reference(x, stride, s.rows, w, s.n, s.k, bias.data());
      const double scale = 0.5 * std::sqrt(s.k) + 1;
      for (size_t i = 0; i < outs; ++i) {
        ASSERT_NEAR(wide[i], plain[i], 2e-5 * scale) << i;
        ASSERT_NEAR(sum[i], biased[i] + 2.5, 2e-5 * scale) << i;
        ASSERT_NEAR(narrow[i], biased[i],
                    static_cast<double>(tolerance(scale + std::abs(biased[i]))))
            << i;
      }
    }
  }
}

// Rows in batches of any size, at any place, on any number of threads, beside other matrices: the
// same bits as one at a time.
TEST_P(LinearTest, RowsDoNotDependOnTheirBatch) {
  const int rows = 50, n = 50, k = 110;
  const Tensor x = Tensor::random(activation(), static_cast<size_t>(rows * k), random_);
  for (const DType weight_type : {DType::kBf16, DType::kF32}) {
    const Tensor w = Tensor::random(weight_type, static_cast<size_t>(n * k), random_);
    const WeightMatrix matrix{w.data(), weight_type, n, k};
    std::vector<float> alone(static_cast<size_t>(rows * n));
    const auto single = GetParam().make(1);
    for (int r = 0; r < rows; ++r) {
      const LinearPart part{matrix, nullptr, alone.data() + r * n, n, LinearPart::Out::kFloat};
      single->linear(x.at(static_cast<size_t>(r * k)), k, 1, {&part, 1});
    }
    const auto threaded = GetParam().make(3);
    for (int round = 0; round < 16; ++round) {
      const int first = static_cast<int>(random_.below(rows));
      const int count = 1 + static_cast<int>(random_.below(static_cast<uint64_t>(rows - first)));
      std::vector<float> batch(static_cast<size_t>(count * n)), again(batch.size());
      const LinearPart parts[] = {{matrix, nullptr, batch.data(), n, LinearPart::Out::kFloat},
                                  {matrix, nullptr, again.data(), n, LinearPart::Out::kFloat}};
      (round % 2 ? single : threaded)
          ->linear(x.at(static_cast<size_t>(first * k)), k, count, parts);
      ASSERT_EQ(std::memcmp(batch.data(), alone.data() + first * n, batch.size() * sizeof(float)),
                0)
          << "rows " << first << " + " << count;
      ASSERT_EQ(batch, again);
    }
  }
}

// Enough rows and weights that the work is cut into row blocks and pieces.
TEST_P(LinearTest, LargeBatchEqualsItsRows) {
  if (GetParam().isa == CpuIsa::kScalar) GTEST_SKIP() << "slow, and cut in the same way";
  const int rows = 600, n = 96, k = 1024;
  const Tensor x = Tensor::random(activation(), static_cast<size_t>(rows * k), random_);
  const Tensor w = Tensor::random(DType::kBf16, static_cast<size_t>(n * k), random_);
  const WeightMatrix matrix{w.data(), DType::kBf16, n, k};
  std::vector<float> batch(static_cast<size_t>(rows * n)), row(static_cast<size_t>(n));
  const auto ops = GetParam().make(2);
  const LinearPart all{matrix, nullptr, batch.data(), n, LinearPart::Out::kFloat};
  ops->linear(x.data(), k, rows, {&all, 1});
  for (int r = 0; r < rows; r += 13) {
    const LinearPart part{matrix, nullptr, row.data(), n, LinearPart::Out::kFloat};
    ops->linear(x.at(static_cast<size_t>(r * k)), k, 1, {&part, 1});
    ASSERT_EQ(std::memcmp(row.data(), batch.data() + r * n, row.size() * sizeof(float)), 0) << r;
  }
}

VAMP_INSTANTIATE_KERNELS_TEST(LinearTest);

}  // namespace
}  // namespace vamp::test
