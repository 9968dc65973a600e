// What whole layers in one launch owe to themselves: decoder_layer_test.cc holds one layer to the
// CPU ops; here several in one launch give the same bits as one after the other, whatever ran
// before. Without a GPU every test says so and is skipped.
#include "kernels/cuda/fused_decode.h"

#include <numeric>

#include "kernels/cuda/cuda_test_support.h"

namespace vamp::cuda {
namespace {

using test::Tensor;

constexpr int kWidth = 2048, kQueryHeads = 32, kKvHeads = 4, kDim = 128, kFewExperts = 16,
              kBlockSize = 16;
constexpr int kContext = 70, kContextBlocks = (kContext + kBlockSize - 1) / kBlockSize;
constexpr size_t kMatrix = size_t{768} * kWidth;

OnDevice random_on_device(size_t count, Random& random, double scale) {
  return OnDevice(Tensor::random(DType::kBf16, count, random, scale));
}

struct FewExpertsLayer {
  OnDevice in, out, router, gate_up, down, norm, head_norm;
  explicit FewExpertsLayer(Random& random)
      : in(random_on_device(size_t{(kQueryHeads + 2 * kKvHeads) * kDim} * kWidth, random, 0.02)),
        out(random_on_device(size_t{kQueryHeads * kDim} * kWidth, random, 0.02)),
        router(random_on_device(size_t{kFewExperts} * kWidth, random, 0.02)),
        gate_up(random_on_device(kFewExperts * 2 * kMatrix, random, 0.02)),
        down(random_on_device(kFewExperts * kMatrix, random, 0.02)),
        norm(Tensor::random(DType::kF32, kWidth, random, 1.0)),
        head_norm(Tensor::random(DType::kF32, kDim, random, 1.0)) {}
};

class FusedDecodeTest : public testing::Test {
 protected:
  void SetUp() override {
    SKIP_WITHOUT_GPU();
    Random random(7);
    for (int l = 0; l < 3; ++l) {
      weights_.push_back(std::make_unique<FewExpertsLayer>(random));
      const FewExpertsLayer& w = *weights_.back();
      FusedLayer layer;
      layer.in = w.in.bf();
      layer.out = w.out.bf();
      layer.router = w.router.bf();
      layer.gate_up = w.gate_up.bf();
      layer.down = w.down.bf();
      layer.input_norm = layer.post_norm = w.norm.f32();
      layer.q_norm = layer.k_norm = w.head_norm.f32();
      layer.cache_layer = l;
      layers_.push_back(layer);
    }
    shape_.hidden = kWidth;
    shape_.heads = kQueryHeads;
    shape_.kv_heads = kKvHeads;
    shape_.head_dim = kDim;
    shape_.scale = 0.088f;
    shape_.moe = {kFewExperts, 4, kWidth, 768};
    shape_.gate_up_stride = 4 * kMatrix;
    shape_.down_stride = 2 * kMatrix;
    cache_.layout = {3, kKvHeads, kDim, kBlockSize, DType::kBf16};
    const size_t blocks = size_t{FusedDecode::kMaxTokens} * kContextBlocks;
    arena_ = std::make_unique<OnDevice>(
        random_on_device(blocks * static_cast<size_t>(cache_.layout.block_stride()), random, 1.0));
    cache_.arena = arena_->bf();
    residual_ = Tensor::random(DType::kBf16, size_t{FusedDecode::kMaxTokens} * kWidth, random, 1.0);
    cos_sin_ = std::make_unique<OnDevice>(
        Tensor::random(DType::kF32, size_t{FusedDecode::kMaxTokens} * kDim, random, 0.7));
    std::vector<int32_t> ids(blocks), start, contexts, slots;
    std::iota(ids.rbegin(), ids.rend(), 0);
    for (int s = 0; s <= FusedDecode::kMaxTokens; ++s) start.push_back(s * kContextBlocks);
    for (int s = 0; s < FusedDecode::kMaxTokens; ++s) {
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
  }

  std::vector<float> run(std::vector<FusedDecode*> parts, int sequences) {
    FusedBatch batch;
    batch.attention = {sequences, contexts_.get(), start_.get(), ids_.get()};
    batch.kv_slots = slots_.get();
    batch.cos_sin = cos_sin_->f32();
    batch.cache = cache_;
    const OnDevice residual(residual_);
    for (FusedDecode* part : parts) part->run(residual.bf(), batch, nullptr);
    check(cudaDeviceSynchronize(), "running the layers");
    const Tensor back = residual.back();
    std::vector<float> values(static_cast<size_t>(sequences) * kWidth);
    for (size_t i = 0; i < values.size(); ++i) values[i] = back[i];
    return values;
  }

  FusedShape shape_;
  std::vector<std::unique_ptr<FewExpertsLayer>> weights_;
  std::vector<FusedLayer> layers_;
  KvCache cache_;
  std::unique_ptr<OnDevice> arena_, cos_sin_;
  Tensor residual_{DType::kBf16, 1};
  DeviceBuffer<int32_t> ids_, start_, contexts_, slots_;
};

TEST_F(FusedDecodeTest, LayersInOneLaunchAreTheSameAsOneAfterTheOther) {
  FusedDecode all(shape_, layers_), first(shape_, {layers_[0]}), second(shape_, {layers_[1]}),
      third(shape_, {layers_[2]});
  for (const int sequences : {1, 2, 4})
    EXPECT_EQ(run({&all}, sequences), run({&first, &second, &third}, sequences)) << sequences;
}

TEST_F(FusedDecodeTest, ALaunchLeavesNothingToTheNext) {
  FusedDecode all(shape_, layers_);  // an odd number of layers: arrays change places each time
  std::vector<std::vector<float>> first;
  for (const int sequences : {1, 2, 3, 4}) first.push_back(run({&all}, sequences));
  for (int i = 0; i < 200; ++i) {
    const int sequences = 1 + i * 7 % 4;
    ASSERT_EQ(run({&all}, sequences), first[static_cast<size_t>(sequences) - 1]) << "run " << i;
  }
}

TEST_F(FusedDecodeTest, ATokenDoesNotDependOnTheOthers) {
  FusedDecode all(shape_, layers_);
  const std::vector<float> together = run({&all}, 3), alone = run({&all}, 1);
  EXPECT_EQ(std::vector<float>(together.begin(), together.begin() + kWidth), alone);
}

TEST_F(FusedDecodeTest, NoSequencesAndNotANumber) {
  FusedDecode all(shape_, layers_);
  run({&all}, 0);
  residual_.set(5, std::numeric_limits<float>::quiet_NaN());
  const std::vector<float> got = run({&all}, 2);
  for (int i = 0; i < kWidth; ++i) {
    ASSERT_TRUE(std::isnan(got[static_cast<size_t>(i)])) << i;
    ASSERT_FALSE(std::isnan(got[static_cast<size_t>(kWidth + i)])) << i;
  }
}

TEST_F(FusedDecodeTest, SaysWhatItDoesNotTake) {
  EXPECT_TRUE(FusedDecode::takes(shape_));
  for (const auto& change : std::vector<std::function<void(FusedShape&)>>{
           [](FusedShape& s) { s.hidden = s.moe.hidden = 4096; },
           [](FusedShape& s) { s.head_dim = 256; }, [](FusedShape& s) { s.kv_heads = 2; },
           [](FusedShape& s) { s.moe.experts = 512; }, [](FusedShape& s) { s.moe.top_k = 20; },
           [](FusedShape& s) { s.moe.intermediate = 14336; }}) {
    FusedShape other = shape_;
    change(other);
    EXPECT_FALSE(FusedDecode::takes(other));
    EXPECT_THROW(FusedDecode(other, layers_), std::exception);
  }
}

}  // namespace
}  // namespace vamp::cuda
