#include "sim/model_shapes.h"

namespace vamp {

ModelConfig qwen3_30b_a3b() {
  ModelConfig model;
  model.architecture = Architecture::kQwen3Moe;
  model.model_type = "qwen3_moe";
  model.vocab_size = 151936;
  model.hidden_size = 2048;
  model.num_heads = 32;
  model.num_kv_heads = 4;
  model.head_dim = 128;
  model.max_position_embeddings = 131072;
  model.qk_norm = true;
  model.num_experts = 128;
  model.experts_per_token = 8;
  model.moe_intermediate_size = 768;
  model.layers.assign(48, {});
  return model;
}

ModelConfig qwen3_next_80b_a3b() {
  ModelConfig model = qwen3_30b_a3b();
  model.architecture = Architecture::kQwen3Next;
  model.model_type = "qwen3_next";
  model.num_heads = 16;
  model.num_kv_heads = 2;
  model.head_dim = 256;
  model.max_position_embeddings = 262144;
  model.norm_one_plus_weight = true;
  model.attention_output_gate = true;
  model.num_experts = 512;
  model.experts_per_token = 10;
  model.moe_intermediate_size = 512;
  model.shared_expert_intermediate_size = 512;
  model.linear_num_key_heads = 16;
  model.linear_num_value_heads = 32;
  model.linear_key_head_dim = model.linear_value_head_dim = 128;
  model.linear_conv_kernel_dim = 4;
  for (int l = 0; l < 48; ++l) {
    model.layers[l].attention = l % 4 == 3 ? AttentionKind::kFull : AttentionKind::kLinear;
  }
  return model;
}

ModelConfig smollm2_moe(int experts, int expert_width) {
  ModelConfig model;
  model.architecture = Architecture::kMixtral;
  model.model_type = "mixtral";
  model.vocab_size = 49152;
  model.hidden_size = 576;
  model.num_heads = 9;
  model.num_kv_heads = 3;
  model.head_dim = 64;
  model.max_position_embeddings = 8192;
  model.tie_word_embeddings = true;
  model.num_experts = experts;
  model.experts_per_token = 2;
  model.moe_intermediate_size = expert_width;
  model.layers.assign(30, {});
  return model;
}

}  // namespace vamp
