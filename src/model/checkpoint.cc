#include "model/checkpoint.h"

#include <utility>

#include "base/error.h"
#include "model/dummy_weights.h"
#include "model/json_fields.h"
#include "model/safetensors.h"

namespace vamp {
namespace {

ExpertFormat find_expert_format(const ModelConfig& model, const TensorSource& source) {
  const std::string fused = tensor_name(model, ExpertFormat::kFused, TensorRole::kFusedGateUp,
                                        model.moe_layers().front());
  return source.describe(fused) ? ExpertFormat::kFused : ExpertFormat::kPerExpert;
}

bool is_expert(TensorRole role) {
  return role >= TensorRole::kExpertGate;
}

std::string shape_text(const std::vector<size_t>& shape) {
  std::string text;
  for (const size_t size : shape) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "]";
}

}  // namespace

Checkpoint::Checkpoint(ModelConfig model, std::unique_ptr<TensorSource> source)
    : model_(std::move(model)),
      source_(std::move(source)),
      format_(find_expert_format(model_, *source_)) {
  check_tensors();
}

void Checkpoint::check_tensors() const {
  std::string first_missing;
  int missing = 0;
  for (const TensorSpec& spec : checkpoint_tensors(model_, format_)) {
    const std::optional<TensorInfo> info = source_->describe(spec.name);
    if (!info) {
      if (missing++ == 0) first_missing = fmt::format("'{}' {}", spec.name, shape_text(spec.shape));
      continue;
    }
    if (info->shape != spec.shape) {
      throw Error("{}: tensor '{}' has shape {}; config.json makes it {}", source_->description(),
                  spec.name, shape_text(info->shape), shape_text(spec.shape));
    }
    if (is_expert(spec.role) && info->dtype != model_.dtype) {
      throw Error(
          "{}: tensor '{}' is {}, but config.json says {}: experts must have the model's "
          "dtype",
          source_->description(), spec.name, dtype_name(info->dtype), dtype_name(model_.dtype));
    }
  }
  if (missing > 0) {
    throw Error("{}: tensor {} is missing{}; config.json and the weights do not belong together",
                source_->description(), first_missing,
                missing > 1 ? fmt::format(", and {} more are", missing - 1) : "");
  }
}

std::string Checkpoint::name(TensorRole role, int layer, int expert) const {
  return tensor_name(model_, format_, role, layer, expert);
}

TensorView Checkpoint::view(TensorRole role, int layer, int expert) const {
  std::optional<TensorView> found = source_->find(name(role, layer, expert));
  VAMP_CHECK(found.has_value(), "{}", name(role, layer, expert));
  return std::move(*found);
}

TensorView Checkpoint::tensor(TensorRole role, int layer) const {
  VAMP_CHECK(!is_expert(role));
  if (role == TensorRole::kLmHead && model_.tie_word_embeddings) role = TensorRole::kEmbedding;
  return view(role, layer);
}

void Checkpoint::release(TensorRole role, int layer) const {
  if (role == TensorRole::kLmHead && model_.tie_word_embeddings) role = TensorRole::kEmbedding;
  source_->release(name(role, layer));
}

ExpertWeights Checkpoint::expert(int layer, int expert) const {
  VAMP_CHECK(expert >= 0 && expert < model_.num_experts, "expert {}", expert);
  if (format_ == ExpertFormat::kPerExpert) {
    return {view(TensorRole::kExpertGate, layer, expert).data,
            view(TensorRole::kExpertUp, layer, expert).data,
            view(TensorRole::kExpertDown, layer, expert).data};
  }
  const size_t matrix = static_cast<size_t>(model_.moe_intermediate_size) *
                        static_cast<size_t>(model_.hidden_size) * dtype_bytes(model_.dtype);
  const auto index = static_cast<size_t>(expert);
  const std::byte* gate_up = view(TensorRole::kFusedGateUp, layer).data + index * 2 * matrix;
  return {gate_up, gate_up + matrix, view(TensorRole::kFusedDown, layer).data + index * matrix};
}

void Checkpoint::release_expert(int layer, int expert) const {
  if (format_ == ExpertFormat::kFused) return;
  for (const TensorRole role :
       {TensorRole::kExpertGate, TensorRole::kExpertUp, TensorRole::kExpertDown}) {
    source_->release(name(role, layer, expert));
  }
}

LoadFormat parse_load_format(std::string_view text) {
  if (text == "auto" || text == "safetensors") return LoadFormat::kSafetensors;
  if (text == "dummy") return LoadFormat::kDummy;
  throw Error("--load-format {}: expected auto, safetensors or dummy", quote(text));
}

Checkpoint open_checkpoint(const std::filesystem::path& folder, LoadFormat format, uint64_t seed) {
  ModelConfig model = load_model_config(folder);
  std::unique_ptr<TensorSource> source;
  if (format == LoadFormat::kDummy) {
    source = std::make_unique<DummyWeights>(model, seed);
  } else {
    source = std::make_unique<SafetensorsReader>(folder);
  }
  return Checkpoint(std::move(model), std::move(source));
}

}  // namespace vamp
