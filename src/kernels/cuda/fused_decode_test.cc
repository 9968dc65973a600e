// What whole layers in one launch owe to themselves: decoder_layer_test.cc holds one layer to the
// CPU ops; here several in one launch give the same bits as one after the other, whatever ran
// before. Without a GPU every test says so and is skipped.
#include "kernels/cuda/fused_decode.h"

#include <functional>
#include <numeric>

#include "kernels/cuda/cuda_test_support.h"

namespace vamp::cuda {
namespace {

using test::Tensor;

constexpr int kWidth = 2048, kBlockSize = 16;
constexpr int kContext = 70, kContextBlocks = (kContext + kBlockSize - 1) / kBlockSize;

// Random weights, many at little cost: windows of a few random values again and again, of a number
// that rows have no divisor with.
class RandomWeights {
 public:
  const __nv_bfloat16* matrix(int64_t count) {
    auto& to = matrices_.emplace_back(static_cast<size_t>(count));
    for (size_t at = 0; at < to.size();) {
      const size_t part = std::min(to.size() - at, kCount - from_);
      check(cudaMemcpy(to.get() + at, few_.bf() + from_, part * 2, cudaMemcpyDeviceToDevice),
            "weights");
      at += part;
      from_ = (from_ + part) % kCount;
    }
    return to.get();
  }
  const float* vector(int64_t count, double scale) {
    vectors_.emplace_back(Tensor::random(DType::kF32, static_cast<size_t>(count), random, scale));
    return vectors_.back().f32();
  }

  Random random{7};

 private:
  static constexpr size_t kCount = 1000003;
  OnDevice few_{Tensor::random(DType::kBf16, kCount, random, 0.02)};
  size_t from_ = 0;
  std::vector<DeviceBuffer<__nv_bfloat16>> matrices_;
  std::vector<OnDevice> vectors_;
};

FusedShape qwen3_shape(int intermediate = 768) {
  FusedShape shape;
  shape.heads = 32;
  shape.kv_heads = 4;
  shape.head_dim = 128;
  shape.scale = 0.088f;
  shape.moe = {16, 4, kWidth, intermediate};
  return shape;
}
// One of two ranks' shape.
FusedShape next_shape(int intermediate = 256) {
  FusedShape shape;
  shape.heads = 8;
  shape.kv_heads = 1;
  shape.head_dim = 256;
  shape.rotary_dim = 64;
  shape.scale = 0.0625f;
  shape.gated = shape.one_plus = shape.shared_expert = true;
  shape.delta = {8, 16, 128, 4};
  shape.moe = {41, 6, kWidth, intermediate};
  return shape;
}

// A model and what its layers have: 'a' attention, 'd' Gated DeltaNet.
struct Model {
  const char* name;
  FusedShape shape;
  std::string layers;
};

class FusedDecodeTest : public testing::TestWithParam<Model> {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_GPU();
    shape_ = GetParam().shape;
    shape_.hidden = kWidth;
    const size_t matrix = size_t{2} * kWidth * static_cast<size_t>(shape_.moe.intermediate);
    shape_.gate_up_stride = 2 * matrix;
    shape_.down_stride = matrix;
    const int64_t width = shape_.heads * shape_.head_dim, E = shape_.moe.experts,
                  I = shape_.moe.intermediate;
    random_ = std::make_unique<RandomWeights>();
    const auto weights = [&](int64_t rows, int64_t cols) { return random_->matrix(rows * cols); };
    const auto norm = [&](int64_t n) { return random_->vector(n, 1.0); };
    FusedLayer attention, delta;  // what layers of a kind share
    attention.in =
        weights((shape_.gated ? 2 : 1) * width + 2 * shape_.kv_heads * shape_.head_dim, kWidth);
    attention.q_norm = attention.k_norm = norm(shape_.head_dim);
    const GatedDeltaShape& d = shape_.delta;
    if (d.value_heads > 0) {
      delta.in = weights(d.qkvz_cols() + d.ba_cols(), kWidth);
      delta.delta = {norm(int64_t{d.channels()} * d.conv_width), norm(d.value_heads),
                     norm(d.value_heads), norm(d.head_dim), 1e-6f};
      delta.state_stride = d.state_size();
      delta.conv_stride = d.conv_state_size();
    }
    const __nv_bfloat16 *gate_up = weights(E * 2 * I, kWidth), *down = weights(E * I, kWidth);
    int cached = 0;
    for (const char kind : GetParam().layers) {
      FusedLayer layer = kind == 'a' ? attention : delta;
      layer.out = weights(kWidth, width);
      layer.router = weights(E, kWidth);
      layer.gate_up = gate_up;
      layer.down = down;
      layer.input_norm = layer.post_norm = norm(kWidth);
      if (kind == 'a') layer.cache_layer = cached++;
      layers_.push_back(layer);
    }
    const int T = FusedDecode::kMaxTokens;
    states_ = DeviceBuffer<float>(layers_.size() * static_cast<size_t>(T * d.state_size()) + 4);
    conv_states_ = DeviceBuffer<__nv_bfloat16>(
        layers_.size() * static_cast<size_t>(T * d.conv_state_size()) + 8);
    for (size_t l = 0; l < layers_.size(); ++l) {
      if (GetParam().layers[l] == 'a') continue;
      layers_[l].states = states_.get() + static_cast<int64_t>(l) * T * d.state_size();
      layers_[l].conv_states =
          conv_states_.get() + static_cast<int64_t>(l) * T * d.conv_state_size();
    }
    cache_.layout = {cached, shape_.kv_heads, shape_.head_dim, kBlockSize, DType::kBf16};
    const size_t blocks = static_cast<size_t>(T) * kContextBlocks;
    arena_ = std::make_unique<OnDevice>(
        Tensor::random(DType::kBf16, blocks * static_cast<size_t>(cache_.layout.block_stride()),
                       random_->random, 1.0));
    cache_.arena = arena_->bf();
    residual_ = Tensor::random(DType::kBf16, static_cast<size_t>(T) * kWidth, random_->random, 1.0);
    cos_sin_ = random_->vector(T * shape_.head_dim, 0.7);
    std::vector<int32_t> ids(blocks), start, contexts, slots;
    std::iota(ids.rbegin(), ids.rend(), 0);
    for (int s = 0; s <= T; ++s) start.push_back(s * kContextBlocks);
    for (int s = 0; s < T; ++s) {
      contexts.push_back(kContext - s * 20);
      slots.push_back(
          ids[static_cast<size_t>(s * kContextBlocks + (contexts.back() - 1) / kBlockSize)] *
              kBlockSize +
          (contexts.back() - 1) % kBlockSize);
    }
    ids_ = DeviceBuffer<int32_t>(ids);
    start_ = DeviceBuffer<int32_t>(start);
    contexts_ = DeviceBuffer<int32_t>(contexts);
    slots_ = DeviceBuffer<int32_t>(slots);
    memories_ = DeviceBuffer<int32_t>(std::vector<int32_t>{2, 0, 3, 1});
    starts_ = DeviceBuffer<int32_t>(std::vector<int32_t>{0, 1, 0, 0});
  }

  // The residual, and, if `all`, what layers keep of the sequences.
  std::vector<float> run(std::vector<FusedDecode*> parts, int sequences, bool all = false) {
    FusedBatch batch;
    batch.attention = {sequences, contexts_.get(), start_.get(), ids_.get()};
    batch.kv_slots = slots_.get();
    batch.cos_sin = cos_sin_;
    batch.cache = cache_;
    batch.slots = memories_.get();
    batch.starts = starts_.get();
    // Bytes of 0x3c: about 0.0115 in both types.
    check(cudaMemset(states_.get(), 0x3c, states_.size() * sizeof(float)), "new states");
    check(cudaMemset(conv_states_.get(), 0x3c, conv_states_.size() * sizeof(__nv_bfloat16)),
          "new states");
    const OnDevice residual(residual_);
    for (FusedDecode* part : parts) part->run(residual.bf(), batch, nullptr);
    check(cudaDeviceSynchronize(), "running the layers");
    const Tensor back = residual.back();
    std::vector<float> values(static_cast<size_t>(sequences) * kWidth);
    for (size_t i = 0; i < values.size(); ++i) values[i] = back[i];
    if (all) {
      for (const float v : states_.to_host()) values.push_back(v);
      for (const __nv_bfloat16 v : conv_states_.to_host()) values.push_back(__bfloat162float(v));
    }
    return values;
  }
  std::unique_ptr<RandomWeights> random_;
  FusedShape shape_;
  std::vector<FusedLayer> layers_;
  KvCache cache_;
  std::unique_ptr<OnDevice> arena_;
  const float* cos_sin_ = nullptr;
  DeviceBuffer<float> states_;
  DeviceBuffer<__nv_bfloat16> conv_states_;
  Tensor residual_{DType::kBf16, 1};
  DeviceBuffer<int32_t> ids_, start_, contexts_, slots_, memories_, starts_;
};

TEST_P(FusedDecodeTest, LayersInOneLaunchAreTheSameAsOneAfterTheOther) {
  FusedDecode together(shape_, layers_);
  std::vector<std::unique_ptr<FusedDecode>> alone;
  std::vector<FusedDecode*> parts;
  for (const FusedLayer& layer : layers_) {
    alone.push_back(std::make_unique<FusedDecode>(shape_, std::vector{layer}));
    parts.push_back(alone.back().get());
  }
  for (const int sequences : {1, 2, 4})
    EXPECT_EQ(run({&together}, sequences, true), run(parts, sequences, true)) << sequences;
}

TEST_P(FusedDecodeTest, ALaunchLeavesNothingToTheNext) {
  FusedDecode all(shape_, layers_);  // an odd number of layers: arrays change places each time
  std::vector<std::vector<float>> first;
  for (const int sequences : {1, 2, 3, 4}) first.push_back(run({&all}, sequences));
  for (int i = 0; i < 200; ++i) {
    const int sequences = 1 + i * 7 % 4;
    ASSERT_EQ(run({&all}, sequences), first[static_cast<size_t>(sequences) - 1]) << "run " << i;
  }
}

TEST_P(FusedDecodeTest, ATokenDoesNotDependOnTheOthers) {
  FusedDecode all(shape_, layers_);
  for (int round = 0; round < 10; ++round) {  // small values: a sum in another order is seen
    residual_ = Tensor::random(DType::kBf16, residual_.size(), random_->random, 0.01);
    const std::vector<float> alone = run({&all}, 1);
    for (const int sequences : {2, 3, 4}) {
      const std::vector<float> together = run({&all}, sequences);
      ASSERT_EQ(std::vector<float>(together.begin(), together.begin() + kWidth), alone);
    }
  }
}

TEST_P(FusedDecodeTest, WhatLiesBehindAContextDoesNotMatter) {
  FusedDecode all(shape_, layers_);
  const std::vector<float> want = run({&all}, FusedDecode::kMaxTokens);
  const std::vector<int32_t> contexts = contexts_.to_host(), ids = ids_.to_host();
  const KvLayout& layout = cache_.layout;
  for (size_t s = 0; s < contexts.size(); ++s) {
    const int64_t block =
        ids[s * kContextBlocks + static_cast<size_t>(contexts[s] - 1) / kBlockSize];
    const int behind = (contexts[s] - 1) % kBlockSize + 1;
    for (int l = 0; l < layout.layers; ++l) {
      for (int head = 0; head < layout.kv_heads; ++head) {
        const int64_t k = block * layout.block_stride() + layout.k_offset(l, head, behind);
        for (const int64_t from : {k, k + layout.v_offset()})
          check(cudaMemset(arena_->bf() + from, 0xff,
                           static_cast<size_t>((kBlockSize - behind) * layout.head_dim) * 2),
                "NaN");
      }
    }
  }
  EXPECT_EQ(run({&all}, FusedDecode::kMaxTokens), want);
}

// As in DecodeBatch: a place that a step leaves empty.
TEST_P(FusedDecodeTest, ASequenceWithoutAContextIsPadding) {
  FusedDecode all(shape_, layers_);
  const std::vector<float> alone = run({&all}, 1);
  std::vector<int32_t> contexts = contexts_.to_host(), slots = slots_.to_host();
  contexts[1] = 0;
  slots[1] = -1;
  contexts_ = DeviceBuffer<int32_t>(contexts);
  slots_ = DeviceBuffer<int32_t>(slots);
  const std::vector<float> got = run({&all}, 2);
  EXPECT_EQ(std::vector<float>(got.begin(), got.begin() + kWidth), alone);
  for (const float v : got) ASSERT_TRUE(std::isfinite(v));
}

TEST_P(FusedDecodeTest, ChoosesExpertsAsRouteDoes) {
  FusedShape shape = shape_;
  const bool shared = shape.shared_expert;
  const int E = shared ? 513 : 128, top_k = shared ? 11 : 8, first = shared ? 1 : 0,
            T = FusedDecode::kMaxTokens, I = 64;
  shape.moe = {E, top_k, kWidth, I};
  // An expert's matrices begin a row behind the one's in front.
  shape.gate_up_stride = kWidth * 2;
  shape.down_stride = I * 2;
  // Logits of many values, of one, of few, and of many of which the largest are of one lane.
  std::vector<float> logits;
  for (int t = 0; t < T; ++t) {
    for (int e = 0; e < E; ++e) {
      const auto x = static_cast<float>(random_->random.normal());
      logits.push_back(t == 0   ? x
                       : t == 1 ? 1.0f
                       : t == 2 ? static_cast<float>(e % 5)
                                : x + (e % 32 == 7 ? 10.0f : 0.0f));
    }
  }
  std::vector<uint32_t> want(static_cast<size_t>(E));
  for (int t = 0; t < T; ++t) {
    std::vector<int> order(static_cast<size_t>(E - first));
    std::iota(order.begin(), order.end(), first);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
      return logits[static_cast<size_t>(t * E + a)] > logits[static_cast<size_t>(t * E + b)];
    });
    for (int i = 0; i < top_k - first; ++i)
      ++want[static_cast<size_t>(order[static_cast<size_t>(i)])];
    if (shared) ++want[0];
  }
  const DeviceBuffer<float> given(logits);
  const DeviceBuffer<uint32_t> counts(std::vector<uint32_t>(static_cast<size_t>(E)));
  FusedLayer layer = layers_[GetParam().layers.find('a')];
  layer.router = random_->matrix(int64_t{E} * kWidth);
  layer.gate_up = random_->matrix(int64_t{E + 2 * I} * kWidth);
  layer.down = random_->matrix(int64_t{E + kWidth} * I);
  layer.logits = given.get();
  layer.expert_counts = counts.get();
  FusedDecode one(shape, {layer});
  run({&one}, T);
  EXPECT_EQ(counts.to_host(), want);
}

TEST_P(FusedDecodeTest, NoSequencesAndNotANumber) {
  FusedDecode all(shape_, layers_);
  run({&all}, 0);
  residual_.set(5, std::numeric_limits<float>::quiet_NaN());
  const std::vector<float> got = run({&all}, 2);
  for (int i = 0; i < kWidth; ++i) {
    ASSERT_TRUE(std::isnan(got[static_cast<size_t>(i)])) << i;
    ASSERT_FALSE(std::isnan(got[static_cast<size_t>(kWidth + i)])) << i;
  }
}

TEST_P(FusedDecodeTest, SaysWhatItDoesNotTake) {
  EXPECT_TRUE(FusedDecode::takes(shape_));
  const bool next = shape_.head_dim == 256;
  std::vector<std::function<void(FusedShape&)>> changes{
      [](FusedShape& s) { s.hidden = s.moe.hidden = 4096; },
      [](FusedShape& s) { s.head_dim = 384 - s.head_dim; },
      [](FusedShape& s) { s.heads *= 16; },
      [](FusedShape& s) { s.moe.experts = 1024; },
      [](FusedShape& s) { s.moe.top_k = 20; },
      [](FusedShape& s) { s.moe.intermediate = 14336; },
      [](FusedShape& s) { s.rotary_dim = 32; }};
  if (next) {
    changes.push_back([](FusedShape& s) { s.gated = false; });
    changes.push_back([](FusedShape& s) { s.delta.conv_width = 3; });
    changes.push_back([](FusedShape& s) { s.delta.value_heads = 32; });
    changes.push_back([](FusedShape& s) { s.moe.top_k = 1; });
  } else {
    changes.push_back([](FusedShape& s) { s.gated = true; });
    changes.push_back([](FusedShape& s) { s.shared_expert = true; });
    changes.push_back([](FusedShape& s) { s.delta = {16, 32, 128, 4}; });
  }
  for (const auto& change : changes) {
    FusedShape other = shape_;
    change(other);
    EXPECT_FALSE(FusedDecode::takes(other));
    EXPECT_THROW(FusedDecode(other, layers_), std::exception);
  }
}

INSTANTIATE_TEST_SUITE_P(Models, FusedDecodeTest,
                         testing::Values(Model{"Qwen3", qwen3_shape(), "aaa"},
                                         Model{"Qwen3Of384", qwen3_shape(384), "aaa"},
                                         Model{"Qwen3Of1024", qwen3_shape(1024), "aaa"},
                                         Model{"Qwen3Next", next_shape(), "daddada"},
                                         Model{"Qwen3NextOf64", next_shape(64), "dad"},
                                         Model{"Qwen3NextOf640", next_shape(640), "dad"},
                                         Model{"Qwen3NextOf192", next_shape(192), "dad"}),
                         [](const auto& model) { return std::string(model.param.name); });

}  // namespace
}  // namespace vamp::cuda
