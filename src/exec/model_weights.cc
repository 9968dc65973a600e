#include "exec/model_weights.h"

#include "base/error.h"
#include "exec/convert.h"
#include "model/checkpoint_tensors.h"

namespace vamp {
namespace {

constexpr size_t kAlignment = 64;  // a cache line, a vector

bool is_matrix(const TensorSpec& spec) {
  return spec.shape.size() == 2;
}

size_t stored_bytes(const ModelConfig& model, const TensorSpec& spec) {
  const DType dtype = is_matrix(spec) ? model.dtype : DType::kF32;
  return (spec.elements() * dtype_bytes(dtype) + kAlignment - 1) / kAlignment * kAlignment;
}

WeightMatrix matrix_at(const ModelConfig& model, const TensorSpec& spec, const std::byte* data) {
  return {data, model.dtype, static_cast<int>(spec.shape[0]), static_cast<int>(spec.shape[1])};
}

NormWeight norm_at(const ModelConfig& model, const float* data) {
  return {data, static_cast<float>(model.rms_norm_eps), model.norm_one_plus_weight};
}

// Puts a tensor that lies at `data` where the forward pass looks for it.
void place(const ModelConfig& model, const TensorSpec& spec, const std::byte* data,
           ModelWeights& weights) {
  const auto* floats = reinterpret_cast<const float*>(data);
  const WeightMatrix matrix = is_matrix(spec) ? matrix_at(model, spec, data) : WeightMatrix{};
  if (spec.role == TensorRole::kEmbedding) {
    weights.embedding = matrix;
    if (model.tie_word_embeddings) weights.lm_head = matrix;
    return;
  }
  if (spec.role == TensorRole::kLmHead) weights.lm_head = matrix;
  if (spec.role == TensorRole::kFinalNorm) weights.final_norm = norm_at(model, floats);
  if (spec.layer < 0) return;
  LayerWeights& layer = weights.layers[spec.layer];
  AttentionWeights& attention = layer.attention;
  switch (spec.role) {
    case TensorRole::kInputNorm:
      layer.input_norm = norm_at(model, floats);
      break;
    case TensorRole::kPostAttentionNorm:
      layer.post_attention_norm = norm_at(model, floats);
      break;
    case TensorRole::kQProj:
      attention.q = matrix;
      break;
    case TensorRole::kKProj:
      attention.k = matrix;
      break;
    case TensorRole::kVProj:
      attention.v = matrix;
      break;
    case TensorRole::kOProj:
      attention.o = matrix;
      break;
    case TensorRole::kQBias:
      attention.q_bias = floats;
      break;
    case TensorRole::kKBias:
      attention.k_bias = floats;
      break;
    case TensorRole::kVBias:
      attention.v_bias = floats;
      break;
    case TensorRole::kOBias:
      attention.o_bias = floats;
      break;
    case TensorRole::kQNorm:
      attention.q_norm = norm_at(model, floats);
      break;
    case TensorRole::kKNorm:
      attention.k_norm = norm_at(model, floats);
      break;
    case TensorRole::kMlpGate:
      layer.mlp.emplace().gate = matrix;
      break;
    case TensorRole::kMlpUp:
      layer.mlp->up = matrix;
      break;
    case TensorRole::kMlpDown:
      layer.mlp->down = matrix;
      break;
    case TensorRole::kRouter:
      layer.router = matrix;
      break;
    default:
      throw Error("{} models can't run on the CPU yet", model.model_type);
  }
}

}  // namespace

size_t ModelWeights::bytes_needed(const ModelConfig& model) {
  size_t bytes = 0;
  for (const TensorSpec& spec : dense_tensors(model, ExpertFormat::kPerExpert)) {
    bytes += stored_bytes(model, spec);
  }
  return bytes;
}

ModelWeights::ModelWeights(const Checkpoint& checkpoint, const Progress& progress)
    : layers(checkpoint.model().layers.size()), memory_(bytes_needed(checkpoint.model())) {
  const ModelConfig& model = checkpoint.model();
  size_t used = 0;
  for (const TensorSpec& spec : dense_tensors(model, checkpoint.expert_format())) {
    const TensorView view = checkpoint.tensor(spec.role, spec.layer);
    std::byte* to = memory_.data() + used;
    const DType dtype = is_matrix(spec) ? model.dtype : DType::kF32;
    copy_elements(view.data, view.dtype, to, dtype, spec.elements());
    checkpoint.release(spec.role, spec.layer);
    place(model, spec, to, *this);
    used += stored_bytes(model, spec);
    progress(used, memory_.bytes());
  }
}

}  // namespace vamp
