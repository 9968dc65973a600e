// What a checkpoint's config.json says, in one form for all architectures.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace vamp {

enum class DType { kBf16, kF16, kF32 };
size_t dtype_bytes(DType dtype);
const char* dtype_name(DType dtype);  // "bfloat16", "float16", "float32"

enum class Architecture { kMixtral, kQwen3Moe, kQwen3Next };

enum class AttentionKind { kFull, kLinear };  // kLinear: Gated DeltaNet
enum class MlpKind { kMoe, kDense };

struct LayerConfig {
  AttentionKind attention = AttentionKind::kFull;
  MlpKind mlp = MlpKind::kMoe;
};

struct RopeConfig {
  enum class Scaling { kDefault, kLinear, kLlama3, kYarn };
  Scaling scaling = Scaling::kDefault;
  double theta = 10000.0;
  double partial_rotary_factor = 1.0;  // share of head_dim that rotates
  double factor = 1.0;
  int original_max_position = 0;                         // llama3, yarn: length before the scaling
  double low_freq_factor = 1.0, high_freq_factor = 4.0;  // llama3
  double beta_fast = 32.0, beta_slow = 1.0;              // yarn
  std::optional<double> attention_factor, mscale, mscale_all_dim;  // yarn
  bool truncate = true;                                            // yarn
};

struct ModelConfig {
  Architecture architecture = Architecture::kMixtral;
  std::string model_type;  // "mixtral", "qwen3_moe", "qwen3_next"
  DType dtype = DType::kBf16;

  int vocab_size = 0;
  int hidden_size = 0;
  int num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int max_position_embeddings = 0;
  double rms_norm_eps = 1e-6;
  bool attention_bias = false;
  bool qk_norm = false;                // RMSNorm of each head of q and k (qwen3)
  bool norm_one_plus_weight = false;   // norms are x̂ · (1 + w) (qwen3_next)
  bool attention_output_gate = false;  // q_proj also gives a gate (qwen3_next)
  bool tie_word_embeddings = false;
  RopeConfig rope;

  int num_experts = 0;
  int experts_per_token = 0;
  int moe_intermediate_size = 0;
  int dense_intermediate_size = 0;          // of layers whose mlp is kDense
  int shared_expert_intermediate_size = 0;  // 0: none
  bool norm_topk_prob = true;               // the chosen experts' weights are scaled to sum to 1

  int linear_num_key_heads = 0, linear_num_value_heads = 0;
  int linear_key_head_dim = 0, linear_value_head_dim = 0, linear_conv_kernel_dim = 0;

  std::vector<LayerConfig> layers;
  std::vector<TokenId> eos_token_ids;

  int num_layers() const { return static_cast<int>(layers.size()); }
  int num_moe_layers() const;
  int num_full_attention_layers() const;
  // Indices into `layers` of the MoE layers, in order: MoE layer m is layer moe_layers()[m].
  std::vector<int> moe_layers() const;
};

// Reads `folder_or_file` (a Hugging Face folder or a config.json), as transformers 4 and 5 write
// it, and generation_config.json beside it for the end tokens. Throws Error naming the file, the
// field, what is wrong and what is supported.
ModelConfig load_model_config(const std::filesystem::path& folder_or_file);

// The same from the text of a config.json; `file` stands in messages. No generation_config.json.
ModelConfig parse_model_config(std::string_view text, const std::string& file);

}  // namespace vamp
