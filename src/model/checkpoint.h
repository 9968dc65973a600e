// A model's weights, checked against its config.json and found by role instead of by name.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

#include "model/checkpoint_tensors.h"
#include "model/tensor_source.h"

namespace vamp {

// One expert's matrices, whole (not cut over ranks), row-major, of the model's dtype, at any
// alignment. In a fused checkpoint they point into the layer's one tensor.
struct ExpertWeights {
  const std::byte* gate = nullptr;  // [I, H]
  const std::byte* up = nullptr;    // [I, H]
  const std::byte* down = nullptr;  // [H, I]
};

// Owns the source. Every tensor that the model needs was found there with the right shape when it
// was made; experts have the model's dtype, all else any DType. Read from any thread. It never
// copies.
class Checkpoint {
 public:
  // Throws Error naming the first tensor that is missing or has another shape or dtype.
  Checkpoint(ModelConfig model, std::unique_ptr<TensorSource> source);

  const ModelConfig& model() const { return model_; }
  ExpertFormat expert_format() const { return format_; }

  // A tensor that is not an expert's. kLmHead gives the embedding where the two are tied.
  TensorView tensor(TensorRole role, int layer = -1) const;
  void release(TensorRole role, int layer = -1) const;

  // `layer` counts all layers. It looks names up: keep the pointers for use in every step.
  ExpertWeights expert(int layer, int expert) const;
  // Nothing to give back in a fused checkpoint: an expert has no tensor of its own there.
  void release_expert(int layer, int expert) const;

 private:
  void check_tensors() const;
  std::string name(TensorRole role, int layer, int expert = -1) const;
  TensorView view(TensorRole role, int layer, int expert = -1) const;

  ModelConfig model_;
  std::unique_ptr<TensorSource> source_;
  ExpertFormat format_ = ExpertFormat::kPerExpert;
};

enum class LoadFormat { kSafetensors, kDummy };

// "auto" and "safetensors" read the folder's files, "dummy" makes random weights from config.json
// alone. Throws Error on anything else.
LoadFormat parse_load_format(std::string_view text);

// Opens a Hugging Face folder. `seed` is for dummy weights.
Checkpoint open_checkpoint(const std::filesystem::path& folder, LoadFormat format,
                           uint64_t seed = 0);

}  // namespace vamp
