// Which tensors a checkpoint holds for a model: their roles, names and shapes, for each
// architecture as the Hugging Face hub has them. Pure description; Checkpoint finds them in files.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "model/model_config.h"

namespace vamp {

// Shapes in the comments are [out, in]. H hidden size, V vocabulary, D head dim, Nq and Nkv heads,
// E experts, I the experts' intermediate size, S the shared expert's, F that of layers without
// experts. Gated DeltaNet: Kd = key heads x key head dim, Vd = value heads x value head dim, Nv
// value heads.
enum class TensorRole {
  // Of the model (layer -1).
  kEmbedding,  // [V, H]
  kFinalNorm,  // [H]
  kLmHead,     // [V, H]; absent when tied to the embedding
  // Of every layer.
  kInputNorm,          // [H]
  kPostAttentionNorm,  // [H]
  // Full attention.
  kQProj,  // [Nq D, H]; with an output gate [Nq 2D, H], for each head q then gate
  kKProj,  // [Nkv D, H]
  kVProj,  // [Nkv D, H]
  kOProj,  // [H, Nq D]
  kQBias,
  kKBias,
  kVBias,
  kOBias,
  kQNorm,  // [D]
  kKNorm,  // [D]
  // Gated DeltaNet.
  kLinearQkvz,    // [2 Kd + 2 Vd, H]; for each key head: q, k, v, z
  kLinearBa,      // [2 Nv, H]; for each key head: b, a
  kLinearConv,    // [2 Kd + Vd, 1, width]
  kLinearDtBias,  // [Nv]
  kLinearALog,    // [Nv]
  kLinearNorm,    // [value head dim]
  kLinearOut,     // [H, Vd]
  // Layers without experts.
  kMlpGate,  // [F, H]
  kMlpUp,    // [F, H]
  kMlpDown,  // [H, F]
  // Layers with experts.
  kRouter,            // [E, H]
  kSharedGate,        // [S, H]
  kSharedUp,          // [S, H]
  kSharedDown,        // [H, S]
  kSharedExpertGate,  // [1, H]
  kExpertGate,        // [I, H], one tensor an expert
  kExpertUp,          // [I, H]
  kExpertDown,        // [H, I]
  kFusedGateUp,       // [E, 2I, H]: of each expert first gate, then up
  kFusedDown,         // [E, H, I]
};

// How experts lie in the files: a tensor each (as on the hub), or all of a layer in one (as
// transformers 5 holds them in memory).
enum class ExpertFormat { kPerExpert, kFused };

struct TensorSpec {
  TensorRole role;
  int layer = -1;   // -1: of the whole model
  int expert = -1;  // -1: not of a single expert
  std::string name;
  std::vector<size_t> shape;
  size_t elements() const;
};

std::string tensor_name(const ModelConfig& model, ExpertFormat format, TensorRole role,
                        int layer = -1, int expert = -1);

// Everything that a checkpoint of `model` must hold, in the order in which a forward pass needs it.
std::vector<TensorSpec> checkpoint_tensors(const ModelConfig& model, ExpertFormat format);

// The same without the experts.
std::vector<TensorSpec> dense_tensors(const ModelConfig& model, ExpertFormat format);

// Elements of the tensor that one of `tensor_parallel` ranks holds. Projections are cut by heads or
// along the intermediate size, embedding and head by vocabulary (rounded up), KV heads are copied
// when there are fewer than ranks; norms, routers and the shared expert's gate are whole on every
// rank.
size_t rank_elements(const TensorSpec& tensor, const ModelConfig& model, int tensor_parallel);

// Bytes of all that is not an expert on one rank, in the model's dtype.
size_t dense_weight_bytes(const ModelConfig& model, int tensor_parallel);

// Throws Error unless the model can be cut over that many ranks.
void check_tensor_parallel(const ModelConfig& model, int tensor_parallel);

}  // namespace vamp
