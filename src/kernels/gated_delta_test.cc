#include "kernels/cpu/gated_delta.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "kernels/test_support.h"

namespace vamp::test {
namespace {

// What transformers makes of the same inputs; see tools/make_gated_delta_golden.py.
class GatedDeltaGolden : public testing::Test {
 protected:
  GatedDeltaGolden() {
    std::ifstream file(std::string(VAMP_SOURCE_DIR) + "/tests/golden/gated_delta.json");
    const auto golden = nlohmann::json::parse(file);
    const auto& s = golden.at("shape");
    shape_ = {s.at("key_heads"), s.at("value_heads"), s.at("head_dim"), s.at("conv_width")};
    tokens_ = s.at("tokens");
    for (const char* name : {"conv", "a_log", "dt_bias", "norm", "qkvz", "ba", "out"})
      values_[name] = golden.at(name).get<std::vector<float>>();
    weights_ = {values_["conv"].data(), values_["a_log"].data(), values_["dt_bias"].data(),
                values_["norm"].data(), s.at("norm_eps")};
  }

  // The tokens in steps of these sizes, through one memory of which nothing was cleared.
  Tensor run(DType type, const std::vector<int>& steps) {
    const Tensor qkvz(type, values_["qkvz"]), ba(type, values_["ba"]);
    Tensor out(type, values_["out"].size()), convolved(type, size(tokens_ * shape_.channels()));
    Tensor states(DType::kF32, std::vector<float>(size(shape_.state_size()), NAN));
    Tensor conv_states(type, std::vector<float>(size(shape_.conv_state_size()), NAN));
    int begin = 0;
    for (const int count : steps) {
      const std::vector<int32_t> query_start = {0, count}, slots = {0}, starts = {begin == 0};
      const GatedDeltaBatch batch{count,
                                  1,
                                  query_start.data(),
                                  slots.data(),
                                  starts.data(),
                                  static_cast<float*>(states.data()),
                                  0,
                                  conv_states.data(),
                                  0,
                                  count == 1};
      const void* in = qkvz.at(size(begin * shape_.qkvz_cols()));
      void* o = out.at(size(begin * shape_.value_heads * shape_.head_dim));
      cpu::gated_delta_conv(in, type, batch, shape_, weights_, convolved.data());
      cpu::gated_delta_rule(convolved.data(), ba.at(size(begin * shape_.ba_cols())), type, batch,
                            shape_, weights_, o);
      cpu::gated_delta_norm(o, in, type, count, shape_, weights_, o);
      begin += count;
    }
    return out;
  }
  static size_t size(int64_t n) { return static_cast<size_t>(n); }

  GatedDeltaShape shape_;
  int tokens_ = 0;
  std::map<std::string, std::vector<float>> values_;
  GatedDeltaWeights weights_;
};

TEST_F(GatedDeltaGolden, MatchesTransformers) {
  const Tensor out = run(DType::kF32, {tokens_});
  for (size_t i = 0; i < out.size(); ++i)
    ASSERT_NEAR(out[i], values_["out"][i], 2e-5 * (1 + std::abs(values_["out"][i]))) << i;
}

TEST_F(GatedDeltaGolden, StepsMakeNoDifference) {
  const Tensor whole = run(DType::kF32, {tokens_});
  EXPECT_EQ(run(DType::kF32, {1, 2, 30, 1, 1, tokens_ - 35}).bits(), whole.bits());
}

TEST_F(GatedDeltaGolden, Bf16IsNear) {
  // The norm divides by what may be small: errors of 2^-9 in o come back several times larger.
  const Tensor out = run(DType::kBf16, {40, tokens_ - 40});
  double error = 0, size = 0;
  for (size_t i = 0; i < out.size(); ++i) {
    const double want = values_["out"][i];
    error += (out[i] - want) * (out[i] - want);
    size += want * want;
  }
  EXPECT_LT(std::sqrt(error / size), 0.01);
  EXPECT_GT(std::sqrt(error / size), 1e-4) << "it was computed in f32";
}

}  // namespace
}  // namespace vamp::test
