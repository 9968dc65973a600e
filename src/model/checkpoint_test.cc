#include "model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/test_files.h"
#include "model/dummy_weights.h"
#include "model/safetensors.h"

namespace vamp {
namespace {

using testing::HasSubstr;

std::vector<std::byte> bytes_of(const TensorView& view) {
  return {view.data, view.data + view.bytes};
}

// Tensors in memory, to be damaged by tests.
class FakeSource final : public TensorSource {
 public:
  struct Tensor {
    TensorInfo info;
    std::vector<std::byte> data;
  };
  std::map<std::string, Tensor> tensors;

  static std::unique_ptr<FakeSource> copy_of(const ModelConfig& model, const TensorSource& other) {
    auto source = std::make_unique<FakeSource>();
    for (const TensorSpec& spec : checkpoint_tensors(model, ExpertFormat::kPerExpert)) {
      const TensorView view = *other.find(spec.name);
      source->tensors[spec.name] = {view, bytes_of(view)};
    }
    return source;
  }
  std::optional<TensorInfo> describe(const std::string& name) const override {
    const auto found = tensors.find(name);
    if (found == tensors.end()) return std::nullopt;
    return found->second.info;
  }
  std::optional<TensorView> find(const std::string& name) const override {
    const auto found = tensors.find(name);
    if (found == tensors.end()) return std::nullopt;
    return TensorView{found->second.info, found->second.data.data()};
  }
  void release(const std::string&) const override {}
  std::string description() const override { return "fake"; }
};

std::string error_of(const ModelConfig& model, std::unique_ptr<TensorSource> source) {
  try {
    Checkpoint(model, std::move(source));
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

class GoldenCheckpoint : public testing::TestWithParam<const char*> {};

// What transformers wrote is exactly what we expect, no tensor more or less.
TEST_P(GoldenCheckpoint, HoldsTheTensorsOfItsArchitecture) {
  const auto folder = kGoldenFolder / GetParam();
  const Checkpoint checkpoint = open_checkpoint(folder, LoadFormat::kSafetensors);
  EXPECT_EQ(checkpoint.expert_format(), ExpertFormat::kPerExpert);
  std::set<std::string> wanted;
  for (const auto& spec : checkpoint_tensors(checkpoint.model(), ExpertFormat::kPerExpert)) {
    wanted.insert(spec.name);
  }
  const SafetensorsReader reader(folder);
  const std::vector<std::string> names = reader.names();
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()), wanted);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenCheckpoint,
                         testing::Values("mixtral", "mixtral-llama3-tied-sharded", "qwen3_moe",
                                         "qwen3_moe-dense-layers", "qwen3_moe-yarn-bias",
                                         "qwen3_moe-linear-tied-f16", "qwen3_next"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Checkpoint, TiedHeadIsTheEmbedding) {
  const Checkpoint tied =
      open_checkpoint(kGoldenFolder / "mixtral-llama3-tied-sharded", LoadFormat::kSafetensors);
  EXPECT_EQ(tied.tensor(TensorRole::kLmHead).data, tied.tensor(TensorRole::kEmbedding).data);
  const Checkpoint own = open_checkpoint(kGoldenFolder / "mixtral", LoadFormat::kSafetensors);
  EXPECT_NE(own.tensor(TensorRole::kLmHead).data, own.tensor(TensorRole::kEmbedding).data);
}

TEST(Checkpoint, NamesTheTensorThatDoesNotFit) {
  const ModelConfig model = load_model_config(kGoldenFolder / "qwen3_moe");
  const SafetensorsReader reader(kGoldenFolder / "qwen3_moe");
  const auto damaged = [&](auto&& damage) {
    auto source = FakeSource::copy_of(model, reader);
    damage(source->tensors);
    return error_of(model, std::move(source));
  };
  const std::string up = "model.layers.2.mlp.experts.5.up_proj.weight";
  EXPECT_EQ(damaged([](auto&) {}), "no error");
  EXPECT_THAT(damaged([&](auto& tensors) { tensors.erase(up); }),
              HasSubstr("tensor '" + up + "' [16, 64] is missing;"));
  EXPECT_THAT(damaged([&](auto& tensors) {
                tensors.erase(up);
                tensors.erase("lm_head.weight");
              }),
              HasSubstr("and 1 more are"));
  EXPECT_THAT(damaged([&](auto& tensors) {
                tensors[up].info.shape = {64, 16};
              }),
              HasSubstr("'" + up + "' has shape [64, 16]; config.json makes it [16, 64]"));
  EXPECT_THAT(damaged([&](auto& tensors) { tensors[up].info.dtype = DType::kF16; }),
              HasSubstr("'" + up + "' is float16, but config.json says bfloat16"));
  EXPECT_EQ(damaged([&](auto& tensors) {
              tensors["model.layers.0.mlp.gate.weight"].info.dtype = DType::kF32;
            }),
            "no error");
}

// The same checkpoint with each layer's experts in one tensor, as transformers 5 holds them.
TEST(Checkpoint, FusedExpertsAreTheSameExperts) {
  for (const char* name : {"qwen3_moe", "mixtral"}) {
    const ModelConfig model = load_model_config(kGoldenFolder / name);
    const SafetensorsReader reader(kGoldenFolder / name);
    auto fused = std::make_unique<FakeSource>();
    for (const TensorSpec& spec : checkpoint_tensors(model, ExpertFormat::kPerExpert)) {
      const TensorView view = *reader.find(spec.name);
      const bool down = spec.role == TensorRole::kExpertDown;
      const TensorRole role = spec.expert < 0 ? spec.role
                              : down          ? TensorRole::kFusedDown
                                              : TensorRole::kFusedGateUp;
      auto& target = fused->tensors[tensor_name(model, ExpertFormat::kFused, role, spec.layer)];
      target.data.insert(target.data.end(), view.data, view.data + view.bytes);
      const auto experts = static_cast<size_t>(model.num_experts);
      const std::vector<size_t> shape = {experts, (down ? 1 : 2) * spec.shape[0],
                                         spec.shape.back()};
      target.info = {view.dtype, spec.expert < 0 ? spec.shape : shape, target.data.size()};
    }
    const Checkpoint whole(model, std::move(fused));
    EXPECT_EQ(whole.expert_format(), ExpertFormat::kFused);
    const Checkpoint single = open_checkpoint(kGoldenFolder / name, LoadFormat::kSafetensors);
    const size_t bytes = static_cast<size_t>(model.moe_intermediate_size * model.hidden_size) * 2;
    for (const int layer : model.moe_layers()) {
      for (int e = 0; e < model.num_experts; ++e) {
        const ExpertWeights a = whole.expert(layer, e), b = single.expert(layer, e);
        EXPECT_EQ(std::memcmp(a.gate, b.gate, bytes), 0);
        EXPECT_EQ(std::memcmp(a.up, b.up, bytes), 0);
        EXPECT_EQ(std::memcmp(a.down, b.down, bytes), 0);
      }
    }
  }
}

TEST(CheckpointTensors, BytesOfThePapersModel) {
  const ModelConfig next = load_model_config(kModelsFolder / "qwen3-next-80b-a3b");
  size_t elements = 0;
  for (const auto& spec : checkpoint_tensors(next, ExpertFormat::kPerExpert)) {
    elements += spec.elements();
  }
  EXPECT_NEAR(static_cast<double>(elements) * 2 / kGiB, 148.4, 0.1);  // kernels' table of models
  EXPECT_EQ(dense_weight_bytes(next, 1) + 144 * kGiB, elements * 2);
  EXPECT_NEAR(static_cast<double>(dense_weight_bytes(next, 2)) / dense_weight_bytes(next, 1), 0.53,
              0.02);
  size_t fused = 0;
  for (const auto& spec : checkpoint_tensors(next, ExpertFormat::kFused)) fused += spec.elements();
  EXPECT_EQ(fused, elements);
}

TEST(DummyWeights, DependOnSeedAndNameAlone) {
  const ModelConfig model = load_model_config(kGoldenFolder / "qwen3_next");
  const std::string name = "model.layers.1.mlp.experts.3.up_proj.weight";
  const DummyWeights one(model, 1), again(model, 1), two(model, 2);
  again.find("model.norm.weight");  // the order of asking makes no difference
  const std::vector<std::byte> first = bytes_of(*one.find(name));
  EXPECT_EQ(first, bytes_of(*again.find(name)));
  EXPECT_NE(first, bytes_of(*two.find(name)));
  EXPECT_NE(first, bytes_of(*one.find("model.layers.1.mlp.experts.4.up_proj.weight")));
  one.release(name);
  EXPECT_EQ(first, bytes_of(*one.find(name)));
  EXPECT_FALSE(one.find("model.layers.1.mlp.experts.99.up_proj.weight"));
}

TEST(DummyWeights, AreTheSameForEveryThread) {
  const ModelConfig model = load_model_config(kGoldenFolder / "qwen3_next");
  const DummyWeights weights(model, 1);
  const std::vector<std::string> names = {"lm_head.weight", "model.norm.weight",
                                          "model.layers.3.mlp.gate.weight"};
  std::vector<std::vector<std::byte>> seen(8);
  std::vector<std::thread> threads;
  for (std::vector<std::byte>& mine : seen) {
    threads.emplace_back([&] {
      for (const std::string& name : names) {
        const std::vector<std::byte> bytes = bytes_of(*weights.find(name));
        mine.insert(mine.end(), bytes.begin(), bytes.end());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<std::byte>& bytes : seen) EXPECT_EQ(bytes, seen[0]);
}

TEST(DummyWeights, HaveASensibleScaleInEveryType) {
  for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
    ModelConfig model = load_model_config(kGoldenFolder / "qwen3_next");
    model.dtype = dtype;
    const DummyWeights weights(model, 3);
    const auto moments = [&](const std::string& name) {
      const TensorView view = *weights.find(name);
      const size_t count = view.bytes / dtype_bytes(dtype);
      double sum = 0, squares = 0;
      for (size_t i = 0; i < count; ++i) {
        float value = 0;
        if (dtype == DType::kF32) {
          std::memcpy(&value, view.data + 4 * i, 4);
        } else if (dtype == DType::kBf16) {
          std::memcpy(reinterpret_cast<std::byte*>(&value) + 2, view.data + 2 * i, 2);
        } else {
          __extension__ _Float16 half;
          std::memcpy(&half, view.data + 2 * i, 2);
          value = static_cast<float>(half);
        }
        sum += value;
        squares += value * value;
      }
      const double mean = sum / static_cast<double>(count);
      return std::pair(mean, std::sqrt(squares / static_cast<double>(count) - mean * mean));
    };
    const auto [up_mean, up_std] = moments("model.layers.1.mlp.experts.3.up_proj.weight");
    EXPECT_NEAR(up_mean, 0, 0.02);
    EXPECT_NEAR(up_std, 1.5 / 8, 0.01);
    EXPECT_NEAR(moments("lm_head.weight").second, 3.0 / 8, 0.01);
    EXPECT_NEAR(moments("model.layers.0.linear_attn.norm.weight").first, 1, 0.1);
    EXPECT_NEAR(moments("model.layers.0.input_layernorm.weight").first, 0, 0.1);  // 1 + weight
  }
}

TEST(DummyWeights, MakeACheckpoint) {
  // Of 57 GiB: made lazily.
  const Checkpoint checkpoint =
      open_checkpoint(kModelsFolder / "qwen3-30b-a3b", LoadFormat::kDummy, 5);
  EXPECT_EQ(checkpoint.tensor(TensorRole::kRouter, 47).shape, (std::vector<size_t>{128, 2048}));
  EXPECT_NE(checkpoint.expert(47, 127).down, nullptr);
  checkpoint.release_expert(47, 127);
  EXPECT_THROW(parse_load_format("gguf"), Error);
}

}  // namespace
}  // namespace vamp
