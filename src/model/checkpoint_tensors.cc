#include "model/checkpoint_tensors.h"

#include <algorithm>
#include <initializer_list>
#include <utility>

#include "base/error.h"

namespace vamp {
namespace {

// How a tensor is spread over the ranks.
enum class Split { kWhole, kCut, kVocabulary, kKvHeads };

struct RoleFacts {
  const char* suffix;  // after "model.layers.N.", or the whole name of a model's tensor
  Split split;
};

RoleFacts role_facts(TensorRole role) {
  switch (role) {
    case TensorRole::kEmbedding:
      return {"model.embed_tokens.weight", Split::kVocabulary};
    case TensorRole::kFinalNorm:
      return {"model.norm.weight", Split::kWhole};
    case TensorRole::kLmHead:
      return {"lm_head.weight", Split::kVocabulary};
    case TensorRole::kInputNorm:
      return {"input_layernorm.weight", Split::kWhole};
    case TensorRole::kPostAttentionNorm:
      return {"post_attention_layernorm.weight", Split::kWhole};
    case TensorRole::kQProj:
      return {"self_attn.q_proj.weight", Split::kCut};
    case TensorRole::kKProj:
      return {"self_attn.k_proj.weight", Split::kKvHeads};
    case TensorRole::kVProj:
      return {"self_attn.v_proj.weight", Split::kKvHeads};
    case TensorRole::kOProj:
      return {"self_attn.o_proj.weight", Split::kCut};
    case TensorRole::kQBias:
      return {"self_attn.q_proj.bias", Split::kCut};
    case TensorRole::kKBias:
      return {"self_attn.k_proj.bias", Split::kKvHeads};
    case TensorRole::kVBias:
      return {"self_attn.v_proj.bias", Split::kKvHeads};
    case TensorRole::kOBias:
      return {"self_attn.o_proj.bias", Split::kWhole};
    case TensorRole::kQNorm:
      return {"self_attn.q_norm.weight", Split::kWhole};
    case TensorRole::kKNorm:
      return {"self_attn.k_norm.weight", Split::kWhole};
    case TensorRole::kLinearQkvz:
      return {"linear_attn.in_proj_qkvz.weight", Split::kCut};
    case TensorRole::kLinearBa:
      return {"linear_attn.in_proj_ba.weight", Split::kCut};
    case TensorRole::kLinearConv:
      return {"linear_attn.conv1d.weight", Split::kCut};
    case TensorRole::kLinearDtBias:
      return {"linear_attn.dt_bias", Split::kCut};
    case TensorRole::kLinearALog:
      return {"linear_attn.A_log", Split::kCut};
    case TensorRole::kLinearNorm:
      return {"linear_attn.norm.weight", Split::kWhole};
    case TensorRole::kLinearOut:
      return {"linear_attn.out_proj.weight", Split::kCut};
    case TensorRole::kMlpGate:
      return {"mlp.gate_proj.weight", Split::kCut};
    case TensorRole::kMlpUp:
      return {"mlp.up_proj.weight", Split::kCut};
    case TensorRole::kMlpDown:
      return {"mlp.down_proj.weight", Split::kCut};
    case TensorRole::kRouter:
      return {"gate.weight", Split::kWhole};
    case TensorRole::kSharedGate:
      return {"shared_expert.gate_proj.weight", Split::kCut};
    case TensorRole::kSharedUp:
      return {"shared_expert.up_proj.weight", Split::kCut};
    case TensorRole::kSharedDown:
      return {"shared_expert.down_proj.weight", Split::kCut};
    case TensorRole::kSharedExpertGate:
      return {"shared_expert_gate.weight", Split::kWhole};
    case TensorRole::kExpertGate:
      return {"gate_proj.weight", Split::kCut};
    case TensorRole::kExpertUp:
      return {"up_proj.weight", Split::kCut};
    case TensorRole::kExpertDown:
      return {"down_proj.weight", Split::kCut};
    case TensorRole::kFusedGateUp:
      return {"experts.gate_up_proj", Split::kCut};
    case TensorRole::kFusedDown:
      return {"experts.down_proj", Split::kCut};
  }
  VAMP_CHECK(false, "role {}", static_cast<int>(role));
  return {};
}

bool in_moe_block(TensorRole role) {
  return role >= TensorRole::kRouter;
}

// Collects the tensors of a model.
class TensorList {
 public:
  TensorList(const ModelConfig& model, ExpertFormat format) : model_(model), format_(format) {}

  void add(TensorRole role, int layer, std::initializer_list<int> shape, int expert = -1) {
    TensorSpec spec{role, layer, expert, tensor_name(model_, format_, role, layer, expert), {}};
    for (const int size : shape) spec.shape.push_back(static_cast<size_t>(size));
    tensors_.push_back(std::move(spec));
  }

  void add_full_attention(int layer) {
    const int hidden = model_.hidden_size;
    const int q = model_.num_heads * model_.head_dim;
    const int q_out = model_.attention_output_gate ? 2 * q : q;
    const int kv = model_.num_kv_heads * model_.head_dim;
    add(TensorRole::kQProj, layer, {q_out, hidden});
    add(TensorRole::kKProj, layer, {kv, hidden});
    add(TensorRole::kVProj, layer, {kv, hidden});
    add(TensorRole::kOProj, layer, {hidden, q});
    if (model_.attention_bias) {
      add(TensorRole::kQBias, layer, {q_out});
      add(TensorRole::kKBias, layer, {kv});
      add(TensorRole::kVBias, layer, {kv});
      add(TensorRole::kOBias, layer, {hidden});
    }
    if (model_.qk_norm) {
      add(TensorRole::kQNorm, layer, {model_.head_dim});
      add(TensorRole::kKNorm, layer, {model_.head_dim});
    }
  }

  void add_linear_attention(int layer) {
    const int hidden = model_.hidden_size;
    const int value_heads = model_.linear_num_value_heads;
    const int keys = model_.linear_num_key_heads * model_.linear_key_head_dim;
    const int values = value_heads * model_.linear_value_head_dim;
    add(TensorRole::kLinearQkvz, layer, {2 * keys + 2 * values, hidden});
    add(TensorRole::kLinearBa, layer, {2 * value_heads, hidden});
    add(TensorRole::kLinearConv, layer, {2 * keys + values, 1, model_.linear_conv_kernel_dim});
    add(TensorRole::kLinearDtBias, layer, {value_heads});
    add(TensorRole::kLinearALog, layer, {value_heads});
    add(TensorRole::kLinearNorm, layer, {model_.linear_value_head_dim});
    add(TensorRole::kLinearOut, layer, {hidden, values});
  }

  void add_dense_mlp(int layer) {
    const int hidden = model_.hidden_size, width = model_.dense_intermediate_size;
    add(TensorRole::kMlpGate, layer, {width, hidden});
    add(TensorRole::kMlpUp, layer, {width, hidden});
    add(TensorRole::kMlpDown, layer, {hidden, width});
  }

  void add_moe(int layer) {
    const int hidden = model_.hidden_size, shared = model_.shared_expert_intermediate_size;
    add(TensorRole::kRouter, layer, {model_.num_experts, hidden});
    if (shared == 0) return;
    add(TensorRole::kSharedGate, layer, {shared, hidden});
    add(TensorRole::kSharedUp, layer, {shared, hidden});
    add(TensorRole::kSharedDown, layer, {hidden, shared});
    add(TensorRole::kSharedExpertGate, layer, {1, hidden});
  }

  void add_experts(int layer) {
    const int hidden = model_.hidden_size, width = model_.moe_intermediate_size;
    if (format_ == ExpertFormat::kFused) {
      add(TensorRole::kFusedGateUp, layer, {model_.num_experts, 2 * width, hidden});
      add(TensorRole::kFusedDown, layer, {model_.num_experts, hidden, width});
      return;
    }
    for (int expert = 0; expert < model_.num_experts; ++expert) {
      add(TensorRole::kExpertGate, layer, {width, hidden}, expert);
      add(TensorRole::kExpertUp, layer, {width, hidden}, expert);
      add(TensorRole::kExpertDown, layer, {hidden, width}, expert);
    }
  }

  std::vector<TensorSpec> take() { return std::move(tensors_); }

 private:
  const ModelConfig& model_;
  ExpertFormat format_;
  std::vector<TensorSpec> tensors_;
};

std::vector<TensorSpec> list_tensors(const ModelConfig& model, ExpertFormat format, bool experts) {
  TensorList list(model, format);
  list.add(TensorRole::kEmbedding, -1, {model.vocab_size, model.hidden_size});
  for (int layer = 0; layer < model.num_layers(); ++layer) {
    const LayerConfig& kinds = model.layers[layer];
    list.add(TensorRole::kInputNorm, layer, {model.hidden_size});
    kinds.attention == AttentionKind::kFull ? list.add_full_attention(layer)
                                            : list.add_linear_attention(layer);
    list.add(TensorRole::kPostAttentionNorm, layer, {model.hidden_size});
    if (kinds.mlp == MlpKind::kDense) {
      list.add_dense_mlp(layer);
      continue;
    }
    list.add_moe(layer);
    if (experts) list.add_experts(layer);
  }
  list.add(TensorRole::kFinalNorm, -1, {model.hidden_size});
  if (!model.tie_word_embeddings) {
    list.add(TensorRole::kLmHead, -1, {model.vocab_size, model.hidden_size});
  }
  return list.take();
}

const char* mixtral_expert_suffix(TensorRole role) {
  switch (role) {
    case TensorRole::kExpertGate:
      return "w1.weight";
    case TensorRole::kExpertUp:
      return "w3.weight";
    default:
      return "w2.weight";
  }
}

}  // namespace

size_t TensorSpec::elements() const {
  size_t product = 1;
  for (const size_t size : shape) product *= size;
  return product;
}

std::string tensor_name(const ModelConfig& model, ExpertFormat format, TensorRole role, int layer,
                        int expert) {
  const RoleFacts facts = role_facts(role);
  if (layer < 0) return facts.suffix;
  if (!in_moe_block(role)) return fmt::format("model.layers.{}.{}", layer, facts.suffix);
  const bool mixtral =
      model.architecture == Architecture::kMixtral && format == ExpertFormat::kPerExpert;
  const char* block = mixtral ? "block_sparse_moe" : "mlp";
  if (expert < 0) return fmt::format("model.layers.{}.{}.{}", layer, block, facts.suffix);
  return fmt::format("model.layers.{}.{}.experts.{}.{}", layer, block, expert,
                     mixtral ? mixtral_expert_suffix(role) : facts.suffix);
}

std::vector<TensorSpec> checkpoint_tensors(const ModelConfig& model, ExpertFormat format) {
  return list_tensors(model, format, true);
}

std::vector<TensorSpec> dense_tensors(const ModelConfig& model, ExpertFormat format) {
  return list_tensors(model, format, false);
}

size_t rank_elements(const TensorSpec& tensor, const ModelConfig& model, int tensor_parallel) {
  const auto ranks = static_cast<size_t>(tensor_parallel);
  const size_t elements = tensor.elements();
  switch (role_facts(tensor.role).split) {
    case Split::kWhole:
      return elements;
    case Split::kCut:
      return elements / ranks;
    case Split::kVocabulary:
      return (tensor.shape[0] + ranks - 1) / ranks * tensor.shape[1];
    case Split::kKvHeads:
      return elements / std::min(ranks, static_cast<size_t>(model.num_kv_heads));
  }
  return elements;
}

size_t dense_weight_bytes(const ModelConfig& model, int tensor_parallel) {
  size_t elements = 0;
  for (const TensorSpec& tensor : dense_tensors(model, ExpertFormat::kPerExpert)) {
    elements += rank_elements(tensor, model, tensor_parallel);
  }
  return elements * dtype_bytes(model.dtype);
}

void check_tensor_parallel(const ModelConfig& model, int tensor_parallel) {
  if (tensor_parallel < 1) {
    throw Error("tensor parallelism over {} ranks; expected at least 1", tensor_parallel);
  }
  const auto check = [&](const char* field, int size) {
    if (size % tensor_parallel != 0) {
      throw Error("tensor parallelism over {} ranks needs {} ({}) to be a multiple of it",
                  tensor_parallel, field, size);
    }
  };
  check("num_attention_heads", model.num_heads);
  check("moe_intermediate_size", model.moe_intermediate_size);
  check("intermediate_size", model.dense_intermediate_size);
  check("shared_expert_intermediate_size", model.shared_expert_intermediate_size);
  check("linear_num_key_heads", model.linear_num_key_heads);
  check("linear_num_value_heads", model.linear_num_value_heads);
  if (tensor_parallel <= model.num_kv_heads) {
    check("num_key_value_heads", model.num_kv_heads);
  } else if (tensor_parallel % model.num_kv_heads != 0) {
    throw Error("tensor parallelism over {} ranks needs a multiple of num_key_value_heads ({})",
                tensor_parallel, model.num_kv_heads);
  }
}

}  // namespace vamp
