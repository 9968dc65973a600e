// Gated DeltaNet on the device against the CPU's token-by-token definition. Without a GPU every
// test says so and is skipped.
#include "kernels/cuda/gated_delta.h"

#include <algorithm>

#include "kernels/cpu/gated_delta.h"
#include "kernels/cuda/cuda_test_support.h"
#include "kernels/cuda/gated_delta_chunked.h"

namespace vamp::cuda {
namespace {

using test::Tensor;

struct Case {
  GatedDeltaShape shape;
  std::vector<int> fresh;  // new tokens of each sequence
  std::vector<int> starts;
};
class GatedDelta : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { SKIP_WITHOUT_GPU(); }
};

void expect_within(const Tensor& got, const Tensor& want, float relative, float absolute,
                   const char* what) {
  for (size_t i = 0; i < got.size(); ++i) {
    // What was never written holds NaN in both.
    if (std::isnan(want[i]) && std::isnan(got[i])) continue;
    ASSERT_NEAR(got[i], want[i], relative * std::abs(want[i]) + absolute) << what << " at " << i;
  }
}

TEST_P(GatedDelta, MatchesTheCpu) {
  const Case& c = GetParam();
  const GatedDeltaShape& shape = c.shape;
  Random random(static_cast<uint64_t>(shape.channels()));
  const int sequences = static_cast<int>(c.fresh.size()), slots_total = sequences + 2;
  std::vector<int32_t> query_start{0}, slots;
  bool single = true;
  for (size_t s = 0; s < c.fresh.size(); ++s) {
    query_start.push_back(query_start.back() + c.fresh[s]);
    slots.push_back(static_cast<int32_t>((s * 3 + 1) % c.fresh.size() + 1));
    single &= c.fresh[s] == 1;
  }
  if (sequences % 3 == 0)
    for (int s = 0; s < sequences; ++s) slots[static_cast<size_t>(s)] = s + 1;
  const int tokens = query_start.back();
  const auto T = static_cast<size_t>(tokens);
  const auto size = [](int64_t n) { return static_cast<size_t>(n); };
  const Tensor qkvz = Tensor::random(DType::kBf16, T * size(shape.qkvz_cols()), random);
  const Tensor ba = Tensor::random(DType::kBf16, T * size(shape.ba_cols()), random);
  const Tensor conv =
      Tensor::random(DType::kF32, size(shape.channels() * shape.conv_width), random, 0.5);
  const Tensor a_log = Tensor::random(DType::kF32, size(shape.value_heads), random, 0.5);
  const Tensor dt_bias = Tensor::random(DType::kF32, size(shape.value_heads), random);
  const Tensor norm = Tensor::random(DType::kF32, size(shape.head_dim), random);
  Tensor states = Tensor::random(DType::kF32, size(slots_total * shape.state_size()), random, 0.3);
  Tensor conv_states =
      Tensor::random(DType::kBf16, size(slots_total * shape.conv_state_size()), random);
  for (size_t s = 0; s < slots.size(); ++s) {  // an empty memory is not to be read
    if (!c.starts[s]) continue;
    for (int64_t i = 0; i < shape.state_size(); ++i)
      states.set(size(slots[s] * shape.state_size() + i), NAN);
    for (int64_t i = 0; i < shape.conv_state_size(); ++i)
      conv_states.set(size(slots[s] * shape.conv_state_size() + i), NAN);
  }
  const Tensor before = transposed(states, shape.head_dim), conv_before = conv_states;
  const OnDevice dqkvz(qkvz), dba(ba), dconv_states(conv_states);
  const OnDevice dconv(conv), da_log(a_log), ddt_bias(dt_bias), dnorm(norm), dstates(before);
  const DeviceBuffer<int32_t> dquery_start(query_start), dslots(slots), dstarts(c.starts);

  const auto floats = [](const Tensor& t) { return static_cast<const float*>(t.data()); };
  const GatedDeltaWeights weights{floats(conv), floats(a_log), floats(dt_bias), floats(norm),
                                  1e-6f};
  const GatedDeltaBatch batch{tokens,
                              sequences,
                              query_start.data(),
                              slots.data(),
                              c.starts.data(),
                              static_cast<float*>(states.data()),
                              shape.state_size(),
                              conv_states.data(),
                              shape.conv_state_size(),
                              single};
  Tensor convolved(DType::kBf16, T * size(shape.channels()));
  Tensor o(DType::kBf16, T * size(shape.value_heads * shape.head_dim)), gated = o;
  cpu::gated_delta_conv(qkvz.data(), DType::kBf16, batch, shape, weights, convolved.data());
  cpu::gated_delta_rule(convolved.data(), ba.data(), DType::kBf16, batch, shape, weights, o.data());
  cpu::gated_delta_norm(o.data(), qkvz.data(), DType::kBf16, tokens, shape, weights, gated.data());

  GatedDeltaWeights dweights{dconv.f32(), da_log.f32(), ddt_bias.f32(), dnorm.f32(), 1e-6f};
  GatedDeltaBatch dbatch = batch;
  dbatch.query_start = dquery_start.get();
  dbatch.slots = dslots.get();
  dbatch.starts = dstarts.get();
  dbatch.states = dstates.f32();
  dbatch.conv_states = dconv_states.bf();
  const OnDevice dconvolved(Tensor(DType::kBf16, convolved.size())), fed(convolved), fed_o(o),
      dout(Tensor(DType::kBf16, o.size())), dgated(Tensor(DType::kBf16, o.size()));
  gated_delta_conv(dqkvz.bf(), dbatch, shape, dweights, dconvolved.bf(), nullptr);
  gated_delta_rule(fed.bf(), dba.bf(), dbatch, shape, dweights, dout.bf(), nullptr);
  gated_delta_norm(fed_o.bf(), dqkvz.bf(), tokens, shape, dweights, dgated.bf(), nullptr);
  // Results are rounded to bf16 once on both sides: they differ by a step of it at most, 2^-8.
  expect_within(dconvolved.back(), convolved, 0x1p-7f, 1e-6f, "convolution");
  expect_within(dconv_states.back(), conv_states, 0, 0, "convolution's state");
  expect_within(dout.back(), o, 0x1p-7f, 1e-4f, "rule");
  const Tensor want_states = transposed(states, shape.head_dim);
  expect_within(dstates.back(), want_states, 1e-4f, 1e-4f, "state");
  expect_within(dgated.back(), gated, 0x1p-7f, 1e-6f, "norm");

  if (gated_delta_takes_decode(dbatch, shape)) {
    const OnDevice decode_states(before), decode_conv(conv_before);
    const OnDevice out(Tensor(DType::kBf16, o.size()));
    GatedDeltaBatch at_once = dbatch;
    at_once.states = decode_states.f32();
    at_once.conv_states = decode_conv.bf();
    gated_delta_decode(dqkvz.bf(), dba.bf(), at_once, shape, dweights, out.bf(), nullptr);
    // A rounding of what the CPU rounds too may fall the other way, and the norm scales it.
    expect_within(out.back(), gated, 0x1p-6f, 0x1p-7f, "decode");
    expect_within(decode_states.back(), want_states, 1e-2f, 1e-2f, "decode's state");
    expect_within(decode_conv.back(), conv_states, 0, 0, "decode's inputs");
  }
  if (shape.head_dim != 128 || std::find(c.fresh.begin(), c.fresh.end(), 0) != c.fresh.end())
    return;
  const OnDevice chunked_states(before);
  const OnDevice chunked_out(Tensor(DType::kBf16, o.size()));
  dbatch.states = chunked_states.f32();
  // The last snapshot is the state after the step.
  std::vector<int64_t> snapshots{0};
  for (const int fresh : c.fresh) snapshots.push_back(snapshots.back() + (fresh + 63) / 64);
  const DeviceBuffer<int64_t> dsnapshots(snapshots);
  const OnDevice taken(Tensor(DType::kF32, size(snapshots.back() * shape.state_size())));
  DeviceBuffer<char> scratch(gated_delta_chunked_scratch_bytes(tokens, sequences, shape));
  gated_delta_rule_chunked(fed.bf(), dba.bf(), dbatch, shape, dweights, chunked_out.bf(),
                           {64, dsnapshots.get(), taken.f32()}, scratch.get(), nullptr);
  // Values are of about 1; each of q, k, v and the chunk's own products is rounded to bf16.
  expect_within(chunked_out.back(), o, 0x1p-6f, 0x1p-6f, "chunked rule");
  expect_within(chunked_states.back(), want_states, 0x1p-6f, 0x1p-6f, "chunked state");
  const Tensor got = taken.back();
  for (size_t s = 0; s < c.fresh.size(); ++s) {
    const int64_t last = (snapshots[s + 1] - 1) * shape.state_size();
    for (int64_t i = 0; i < shape.state_size(); ++i) {
      const float want = want_states[size(slots[s] * shape.state_size() + i)];
      ASSERT_NEAR(got[size(last + i)], want, 0x1p-6f * std::abs(want) + 0x1p-6f)
          << "snapshot " << i;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(
    Shapes, GatedDelta,
    testing::Values(Case{{2, 4, 32, 4}, {1}, {1}}, Case{{2, 4, 32, 4}, {5, 1, 2, 40}, {1, 0, 0, 0}},
                    Case{{1, 1, 64, 4}, {100, 3}, {0, 1}},
                    Case{{2, 4, 128, 4}, {1, 1, 1}, {0, 1, 0}}, Case{{4, 8, 128, 4}, {200}, {1}},
                    Case{{2, 4, 128, 4}, {128, 70, 64, 1}, {1, 0, 0, 1}},
                    Case{{1, 2, 128, 4}, {1000}, {0}}, Case{{2, 6, 64, 3}, {2, 0, 17}, {0, 0, 1}},
                    Case{{16, 32, 128, 4}, {33, 1}, {0, 0}}, Case{{4, 4, 128, 4}, {1, 1}, {0, 1}},
                    Case{{2, 6, 128, 3}, {1, 1}, {1, 0}}, Case{{1, 8, 128, 2}, {1}, {0}},
                    Case{{8, 16, 128, 4}, std::vector(20, 1), std::vector(20, 0)}));

}  // namespace
}  // namespace vamp::cuda
