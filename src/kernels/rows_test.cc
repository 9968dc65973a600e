#include <limits>

#include "kernels/test_support.h"

namespace vamp::test {
namespace {

class RowsTest : public KernelsTest {};

TEST_P(RowsTest, EmbedGathersExactly) {
  for (const DType type : {DType::kBf16, DType::kF16, DType::kF32}) {
    const int vocab = 11, cols = 37;
    const Tensor table = Tensor::random(type, static_cast<size_t>(vocab * cols), random_);
    const std::vector<TokenId> ids = {3, 0, 10, 3};
    std::vector<float> out(ids.size() * static_cast<size_t>(cols));
    GetParam().make(2)->embed({table.data(), type, vocab, cols}, ids.data(), 4, out.data());
    for (size_t i = 0; i < out.size(); ++i) {
      const size_t row = i / static_cast<size_t>(cols), col = i % static_cast<size_t>(cols);
      ASSERT_EQ(out[i], table[static_cast<size_t>(ids[row] * cols) + col]);
    }
  }
}

TEST_P(RowsTest, RmsNorm) {
  for (const int cols : {1, 7, 64, 576, 1000}) {
    for (const bool one_plus : {false, true}) {
      const int rows = 3;
      const size_t size = static_cast<size_t>(rows * cols);
      Tensor x = Tensor::random(DType::kF32, size, random_, 3);
      const Tensor delta = Tensor::random(activation(), size, random_);
      const Tensor w = Tensor::random(DType::kF32, static_cast<size_t>(cols), random_);
      const NormWeight norm{static_cast<const float*>(w.data()), 1e-5f, one_plus};
      Tensor plain(activation(), size), added(activation(), size);
      const Tensor before = x;
      const auto ops = GetParam().make();
      ops->rms_norm(x.data(), rows, cols, norm, plain.data());
      ASSERT_EQ(x.bits(), before.bits());
      ops->add_rms_norm(delta.data(), x.data(), rows, cols, norm, added.data());
      for (int r = 0; r < rows; ++r) {
        const size_t first = static_cast<size_t>(r * cols);
        double squares = 0, added_squares = 0;
        for (size_t i = first; i < first + static_cast<size_t>(cols); ++i) {
          ASSERT_EQ(x[i], before[i] + delta[i]);
          squares += std::pow(static_cast<double>(before[i]), 2);
          added_squares += std::pow(static_cast<double>(x[i]), 2);
        }
        for (size_t i = 0; i < static_cast<size_t>(cols); ++i) {
          const double weight = static_cast<double>(w[i]) + (one_plus ? 1 : 0);
          const double want =
              static_cast<double>(before[first + i]) * weight / std::sqrt(squares / cols + 1e-5);
          const double want_added =
              static_cast<double>(x[first + i]) * weight / std::sqrt(added_squares / cols + 1e-5);
          ASSERT_NEAR(plain[first + i], want, static_cast<double>(tolerance(std::abs(want) + 0.1)));
          ASSERT_NEAR(added[first + i], want_added,
                      static_cast<double>(tolerance(std::abs(want_added) + 0.1)));
        }
      }
    }
  }
}

TEST_P(RowsTest, HeadNormTakesEachHeadAlone) {
  const int rows = 2, heads = 3, dim = 48;
  const int64_t stride = heads * dim + 5;
  Tensor x = Tensor::random(activation(), static_cast<size_t>(rows * stride), random_);
  const Tensor before = x;
  const Tensor w = Tensor::random(DType::kF32, static_cast<size_t>(dim), random_);
  GetParam().make()->head_norm(x.data(), stride, rows, heads, dim,
                               {static_cast<const float*>(w.data()), 1e-6f, false});
  for (int r = 0; r < rows; ++r) {
    for (int h = 0; h < heads; ++h) {
      const size_t first = static_cast<size_t>(r * stride + h * dim);
      double squares = 0;
      for (size_t i = 0; i < 48; ++i)
        squares += std::pow(static_cast<double>(before[first + i]), 2);
      for (size_t i = 0; i < 48; ++i) {
        const double want =
            static_cast<double>(before[first + i] * w[i]) / std::sqrt(squares / dim + 1e-6);
        ASSERT_NEAR(x[first + i], want, static_cast<double>(tolerance(std::abs(want) + 0.1)));
      }
    }
    const size_t tail = static_cast<size_t>(r * stride + heads * dim);
    ASSERT_EQ(x.bits(tail, 5), before.bits(tail, 5));
  }
}

TEST_P(RowsTest, RopeRotatesHalfSplitPairsAndLeavesTheRest) {
  const int rows = 3, heads = 2, dim = 40, rotary = 28;
  RopeFrequencies rope{rotary, 1.25f, {}};
  for (int i = 0; i < rotary / 2; ++i)
    rope.inv_freq.push_back(1.0f / static_cast<float>(1 + i * i));
  const std::vector<int32_t> positions = {0, 5, 131};
  std::vector<float> angles(static_cast<size_t>(rows * rotary));
  const auto ops = GetParam().make();
  ops->rope_angles(rope, positions.data(), rows, angles.data());
  const int64_t stride = heads * dim;
  Tensor x = Tensor::random(activation(), static_cast<size_t>(rows * stride), random_);
  const Tensor before = x;
  ops->rope(x.data(), stride, rows, heads, dim, rotary, angles.data());
  for (int r = 0; r < rows; ++r) {
    for (int h = 0; h < heads; ++h) {
      const size_t head = static_cast<size_t>(r * stride + h * dim);
      for (size_t i = 0; i < 14; ++i) {
        const double angle = static_cast<double>(positions[static_cast<size_t>(r)]) *
                             static_cast<double>(rope.inv_freq[i]);
        const double a = static_cast<double>(before[head + i]);
        const double b = static_cast<double>(before[head + 14 + i]);
        ASSERT_NEAR(x[head + i], 1.25 * (a * std::cos(angle) - b * std::sin(angle)),
                    static_cast<double>(tolerance(4)));
        ASSERT_NEAR(x[head + 14 + i], 1.25 * (b * std::cos(angle) + a * std::sin(angle)),
                    static_cast<double>(tolerance(4)));
      }
      ASSERT_EQ(x.bits(head + 28, 12), before.bits(head + 28, 12));
    }
  }
}

TEST_P(RowsTest, SiluAndMul) {
  const int rows = 2, width = 45;
  Tensor x = Tensor::random(activation(), static_cast<size_t>(rows * 2 * width), random_, 4);
  x.set(0, -200.0f);
  x.set(1, 200.0f);
  Tensor out(activation(), static_cast<size_t>(rows * width));
  GetParam().make()->silu_and_mul(x.data(), rows, width, out.data());
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < width; ++i) {
      const double g = static_cast<double>(x[static_cast<size_t>(r * 2 * width + i)]);
      const double u = static_cast<double>(x[static_cast<size_t>(r * 2 * width + width + i)]);
      const double want = g / (1 + std::exp(-g)) * u;
      ASSERT_NEAR(out[static_cast<size_t>(r * width + i)], want,
                  static_cast<double>(tolerance(std::abs(want) + 0.1)));
    }
  }
}

TEST_P(RowsTest, RowsDoNotDependOnTheirBatch) {
  const int rows = 90, cols = 700;
  const size_t size = static_cast<size_t>(rows * cols);
  const Tensor x = Tensor::random(DType::kF32, size, random_);
  const Tensor w = Tensor::random(DType::kF32, static_cast<size_t>(cols), random_);
  const NormWeight norm{static_cast<const float*>(w.data()), 1e-5f, false};
  Tensor batch(activation(), size), alone(activation(), size);
  GetParam().make(3)->rms_norm(x.data(), rows, cols, norm, batch.data());
  const auto single = GetParam().make(1);
  for (size_t r = 0; r < static_cast<size_t>(rows); ++r) {
    single->rms_norm(x.at(r * 700), 1, cols, norm, alone.at(r * 700));
  }
  ASSERT_EQ(batch.bits(), alone.bits());
}

VAMP_INSTANTIATE_KERNELS_TEST(RowsTest);

}  // namespace
}  // namespace vamp::test
