#include "model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/test_files.h"

namespace vamp {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json mixtral() {
  return {{"model_type", "mixtral"},
          {"torch_dtype", "bfloat16"},
          {"vocab_size", 1000},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"num_local_experts", 8},
          {"num_experts_per_tok", 2},
          {"max_position_embeddings", 4096},
          {"rope_theta", 1e6},
          {"sliding_window", nullptr},
          {"rms_norm_eps", 1e-5}};
}

json qwen3_moe() {
  return {{"model_type", "qwen3_moe"},
          {"dtype", "float32"},
          {"vocab_size", 1000},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"moe_intermediate_size", 32},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 32},
          {"num_experts", 8},
          {"num_experts_per_tok", 2},
          {"max_position_embeddings", 4096},
          {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}}};
}

json with(json config, const json& changes) {
  config.update(changes);
  return config;
}

ModelConfig parse(const json& config) {
  return parse_model_config(config.dump(), "config.json");
}

std::string error_of(const json& config) {
  try {
    parse(config);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModelConfig, ReadsQwen3Moe) {
  const ModelConfig model = load_model_config(kModelsFolder / "qwen3-30b-a3b");
  EXPECT_EQ(model.architecture, Architecture::kQwen3Moe);
  EXPECT_EQ(model.dtype, DType::kBf16);
  EXPECT_EQ(model.num_layers(), 48);
  EXPECT_EQ(model.num_moe_layers(), 48);
  EXPECT_EQ(model.num_experts, 128);
  EXPECT_EQ(model.experts_per_token, 8);
  EXPECT_EQ(model.moe_intermediate_size, 768);
  EXPECT_EQ(model.head_dim, 128);
  EXPECT_EQ(model.rope.theta, 1e6);
  EXPECT_TRUE(model.qk_norm);
  EXPECT_TRUE(model.norm_topk_prob);
  EXPECT_FALSE(model.norm_one_plus_weight);
  EXPECT_EQ(model.eos_token_ids, std::vector<TokenId>{151645});
}

TEST(ModelConfig, ReadsQwen3Next) {
  const ModelConfig model = load_model_config(kModelsFolder / "qwen3-next-80b-a3b" / "config.json");
  EXPECT_EQ(model.architecture, Architecture::kQwen3Next);
  EXPECT_EQ(model.num_full_attention_layers(), 12);
  EXPECT_EQ(model.layers[0].attention, AttentionKind::kLinear);
  EXPECT_EQ(model.layers[3].attention, AttentionKind::kFull);
  EXPECT_EQ(model.rope.partial_rotary_factor, 0.25);
  EXPECT_EQ(model.rope.theta, 1e7);
  EXPECT_EQ(model.shared_expert_intermediate_size, 512);
  EXPECT_EQ(model.linear_num_value_heads, 32);
  EXPECT_TRUE(model.norm_one_plus_weight);
  EXPECT_TRUE(model.attention_output_gate);
}

TEST(ModelConfig, ReadsMixtral) {
  const ModelConfig model = parse(mixtral());
  EXPECT_EQ(model.moe_intermediate_size, 96);
  EXPECT_EQ(model.head_dim, 16);  // hidden / heads
  EXPECT_TRUE(model.norm_topk_prob);
  EXPECT_FALSE(model.qk_norm);
  EXPECT_EQ(model.num_moe_layers(), 3);
}

TEST(ModelConfig, BothNamesOfTheExpertCount) {
  json config = mixtral();
  config.erase("num_local_experts");
  EXPECT_EQ(parse(with(config, {{"num_experts", 6}})).num_experts, 6);
  EXPECT_THAT(error_of(config), HasSubstr("num_local_experts' is missing"));
  EXPECT_THAT(error_of(with(mixtral(), {{"num_experts", 6}})), HasSubstr("num_experts' is 6"));
}

TEST(ModelConfig, RopeAsBothVersionsWriteIt) {
  EXPECT_EQ(parse(qwen3_moe()).rope.theta, 5e5);
  const json linear = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(parse(with(mixtral(), {{"rope_scaling", linear}})).rope.scaling,
            RopeConfig::Scaling::kLinear);
  const json llama3 = {{"rope_type", "llama3"},   {"rope_theta", 1e4},
                       {"factor", 8.0},           {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 1024}};
  const RopeConfig rope = parse(with(qwen3_moe(), {{"rope_parameters", llama3}})).rope;
  EXPECT_EQ(rope.scaling, RopeConfig::Scaling::kLlama3);
  EXPECT_EQ(rope.theta, 1e4);
  EXPECT_EQ(rope.factor, 8.0);
  EXPECT_EQ(rope.original_max_position, 1024);
  const json yarn = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"attention_factor", 1.5}, {"truncate", false}};
  const RopeConfig scaled = parse(with(mixtral(), {{"rope_scaling", yarn}})).rope;
  EXPECT_EQ(scaled.scaling, RopeConfig::Scaling::kYarn);
  EXPECT_EQ(scaled.original_max_position, 4096);
  EXPECT_EQ(scaled.attention_factor, 1.5);
  EXPECT_EQ(scaled.mscale, std::nullopt);
  const json derived = {{"rope_type", "yarn"}, {"original_max_position_embeddings", 1024}};
  EXPECT_EQ(parse(with(mixtral(), {{"rope_scaling", derived}})).rope.factor, 4.0);
  EXPECT_FALSE(scaled.truncate);
}

TEST(ModelConfig, RefusesWhatItDoesNotBuild) {
  EXPECT_THAT(error_of(with(mixtral(), {{"model_type", "llama"}})),
              HasSubstr("'llama'; expected mixtral, qwen3_moe or qwen3_next"));
  EXPECT_THAT(error_of(with(mixtral(), {{"sliding_window", 1024}})), HasSubstr("sliding_window"));
  EXPECT_THAT(error_of(with(mixtral(), {{"rope_scaling", {{"rope_type", "longrope"}}}})),
              HasSubstr("'rope_scaling.rope_type' is 'longrope'"));
  EXPECT_THAT(error_of(with(mixtral(), {{"hidden_act", "gelu"}})), HasSubstr("expected silu"));
  EXPECT_THAT(error_of(with(qwen3_moe(), {{"quantization_config", {{"quant_method", "fp8"}}}})),
              HasSubstr("quantization_config"));
  EXPECT_THAT(error_of(with(qwen3_moe(), {{"use_sliding_window", true}, {"sliding_window", 128}})),
              HasSubstr("sliding_window"));
  EXPECT_EQ(error_of(with(qwen3_moe(), {{"sliding_window", 128}})), "no error");
  EXPECT_EQ(error_of(with(mixtral(), {{"sliding_window", 4096}})), "no error");  // never in effect
  EXPECT_THAT(error_of(with(mixtral(), {{"torch_dtype", "int8"}})), HasSubstr("torch_dtype"));
}

TEST(ModelConfig, LayersWithoutExperts) {
  const ModelConfig model =
      parse(with(qwen3_moe(), {{"decoder_sparse_step", 2}, {"mlp_only_layers", {1}}}));
  EXPECT_EQ(model.moe_layers(), std::vector<int>{3});
  EXPECT_EQ(model.dense_intermediate_size, 96);
  EXPECT_THAT(error_of(with(qwen3_moe(), {{"mlp_only_layers", {0, 1, 2, 3}}})),
              HasSubstr("no layer with experts"));
  EXPECT_THAT(error_of(with(qwen3_moe(), {{"mlp_only_layers", {4}}})), HasSubstr("4 is no layer"));
}

TEST(ModelConfig, LayerTypes) {
  json config = with(qwen3_moe(), {{"model_type", "qwen3_next"},
                                   {"shared_expert_intermediate_size", 32},
                                   {"linear_num_key_heads", 2},
                                   {"linear_num_value_heads", 4},
                                   {"linear_key_head_dim", 32},
                                   {"linear_value_head_dim", 32},
                                   {"linear_conv_kernel_dim", 4}});
  EXPECT_EQ(parse(config).num_full_attention_layers(), 1);
  EXPECT_EQ(parse(with(config, {{"full_attention_interval", 2}})).num_full_attention_layers(), 2);
  config["layer_types"] = {"full_attention", "linear_attention", "linear_attention",
                           "full_attention"};
  EXPECT_EQ(parse(config).layers[0].attention, AttentionKind::kFull);
  config["layer_types"][1] = "sliding_attention";
  EXPECT_THAT(error_of(config), HasSubstr("layer 1 is 'sliding_attention'"));
  config["layer_types"] = {"full_attention"};
  EXPECT_THAT(error_of(config), HasSubstr("a list of 4 names"));
  config["layer_types"] = json::array();
  for (int i = 0; i < 4; ++i) config["layer_types"].push_back("linear_attention");
  EXPECT_THAT(error_of(config), HasSubstr("full attention"));
}

// Every required field, missing, of a wrong type, zero, negative and overflowing: named each time.
TEST(ModelConfig, EveryBadFieldIsNamed) {
  const std::vector<const char*> fields = {
      "vocab_size",          "hidden_size", "moe_intermediate_size", "num_hidden_layers",
      "num_attention_heads", "num_experts", "num_experts_per_tok",   "max_position_embeddings"};
  const json bad[] = {0, -1, 1e30, int64_t{1} << 40, UINT64_MAX, 2.5, "many", true, json::array()};
  for (const char* field : fields) {
    json config = qwen3_moe();
    config.erase(field);
    EXPECT_THAT(error_of(config), HasSubstr(std::string("config.json: field '") + field));
    for (const json& value : bad) {
      EXPECT_THAT(error_of(with(qwen3_moe(), {{field, value}})),
                  HasSubstr(std::string("config.json: field '") + field + "' is "))
          << value;
    }
  }
}

TEST(ModelConfig, FaultsBetweenFields) {
  EXPECT_THAT(error_of(with(mixtral(), {{"num_key_value_heads", 3}})), HasSubstr("divisor"));
  EXPECT_THAT(error_of(with(mixtral(), {{"num_experts_per_tok", 9}})), HasSubstr("1 to 8"));
  EXPECT_THAT(error_of(with(qwen3_moe(), {{"head_dim", 33}})), HasSubstr("head_dim"));
  EXPECT_THAT(error_of(with(mixtral(), {{"hidden_size", 65}})), HasSubstr("head_dim"));
  EXPECT_THAT(error_of(with(mixtral(), {{"partial_rotary_factor", 0.3}})),
              HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(error_of(with(mixtral(), {{"rope_theta", nullptr}})), HasSubstr("rope_theta"));
  EXPECT_THAT(error_of(with(mixtral(), {{"rope_theta", 0}})), HasSubstr("rope_theta"));
  EXPECT_THAT(error_of(with(qwen3_moe(), {{"hidden_size", 1 << 20},
                                          {"moe_intermediate_size", 1 << 20},
                                          {"num_experts", 1 << 14}})),
              HasSubstr("parameters"));
}

TEST(ModelConfig, NotAConfig) {
  EXPECT_THROW(parse_model_config("", "f"), Error);
  EXPECT_THROW(parse_model_config("{\"model_type\": ", "f"), Error);
  EXPECT_THROW(parse_model_config("[]", "f"), Error);
  EXPECT_THROW(parse_model_config("{\"a\": 1, \"a\": 2}", "f"), Error);
  EXPECT_THROW(parse_model_config(std::string(100'000, '['), "f"), Error);
  EXPECT_THROW(parse_model_config("{\"model_type\": \"\xff\"}", "f"), Error);
  EXPECT_THROW(load_model_config("/nonexistent/model"), Error);
}

TEST(ModelConfig, EndTokensOfBothFiles) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "end_tokens";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "config.json") << with(mixtral(), {{"eos_token_id", 7}});
  EXPECT_EQ(load_model_config(folder).eos_token_ids, std::vector<TokenId>{7});
  std::ofstream(folder / "generation_config.json") << json{{"eos_token_id", {9, 7}}};
  EXPECT_EQ(load_model_config(folder).eos_token_ids, (std::vector<TokenId>{7, 9}));
  const std::vector<int> many(1000, 7);
  for (const json& wrong :
       {json(-1), json(1 << 30), json{7, mixtral()["vocab_size"]}, json(many)}) {
    std::ofstream(folder / "generation_config.json") << json{{"eos_token_id", wrong}};
    EXPECT_THROW(load_model_config(folder), Error) << wrong;
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace vamp
