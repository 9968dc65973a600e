// A model's weights but its experts, where the forward pass reads them.
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "exec/aligned_buffer.h"
#include "kernels/ops.h"
#include "model/checkpoint.h"
#include "model/model_config.h"

namespace vamp {

struct AttentionWeights {
  WeightMatrix q, k, v, o;
  const float* q_bias = nullptr;  // null: none
  const float* k_bias = nullptr;
  const float* v_bias = nullptr;
  const float* o_bias = nullptr;
  NormWeight q_norm, k_norm;  // data null: none
};

struct DenseMlpWeights {
  WeightMatrix gate, up, down;
};

struct LayerWeights {
  NormWeight input_norm, post_attention_norm;
  AttentionWeights attention;
  std::optional<DenseMlpWeights> mlp;  // of layers without experts
  WeightMatrix router;                 // of layers with experts
};

// Owns the bytes. Matrices are in the model's type (converted where the files hold another), norms
// and biases in f32. Read-only once made, from any thread.
class ModelWeights {
 public:
  // Reads them all; `progress` is told the bytes read so far and all of them.
  using Progress = std::function<void(size_t done, size_t total)>;
  ModelWeights(const Checkpoint& checkpoint, const Progress& progress);
  static size_t bytes_needed(const ModelConfig& model);

  WeightMatrix embedding, lm_head;
  NormWeight final_norm;
  std::vector<LayerWeights> layers;

  size_t bytes() const { return memory_.bytes(); }

 private:
  AlignedBuffer memory_;
};

}  // namespace vamp
