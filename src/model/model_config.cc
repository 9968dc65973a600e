#include "model/model_config.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/file.h"
#include "model/json_fields.h"
#include "model/rope_config.h"

namespace vamp {
namespace {

// Bounds far beyond any real model. They keep every product of a few dimensions inside 63 bits, so
// that no later code has to think of overflow.
constexpr int kMaxWidth = 1 << 20;  // hidden, intermediate
constexpr int kMaxVocab = 1 << 26;
constexpr int kMaxLayers = 4096;
constexpr int kMaxHeads = 4096;
constexpr int kMaxHeadDim = 4096;
constexpr int kMaxExperts = 1 << 14;
constexpr int kMaxPosition = 1 << 28;
constexpr size_t kMaxEosIds = 256;
constexpr double kMaxParameters = 0x1p50;

constexpr const char* kSupported = "mixtral, qwen3_moe or qwen3_next";

Architecture parse_architecture(const JsonFields& config) {
  if (!config.has("model_type")) config.missing("model_type", kSupported);
  const std::string type = config.string("model_type");
  if (type == "mixtral") return Architecture::kMixtral;
  if (type == "qwen3_moe") return Architecture::kQwen3Moe;
  if (type == "qwen3_next") return Architecture::kQwen3Next;
  config.wrong("model_type", std::string(kSupported) + " (the supported architectures)");
}

DType parse_dtype(const JsonFields& config) {
  const char* field = config.has("dtype") || !config.has("torch_dtype") ? "dtype" : "torch_dtype";
  if (!config.has(field)) config.missing(field, "bfloat16, float16 or float32");
  const std::string name = config.string(field);
  for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  config.wrong(field, "bfloat16, float16 or float32");
}

// What changes the model's function and is not built here is refused, never ignored.
void refuse_unsupported(const JsonFields& config, Architecture architecture, int max_position) {
  if (config.has("quantization_config")) {
    config.fault("quantization_config",
                 "quantized weights are not supported; use the bfloat16 checkpoint");
  }
  if (config.has("hidden_act") && config.string("hidden_act") != "silu") {
    config.wrong("hidden_act", "silu");
  }
  const bool window_off =
      architecture != Architecture::kMixtral && !config.boolean_or("use_sliding_window", false);
  if (!window_off && config.has("sliding_window")) {
    const int window = config.integer("sliding_window", 1, kMaxPosition);
    if (window < max_position) {
      config.fault("sliding_window",
                   fmt::format("a window of {} tokens (context {}) is not supported: blocks of the "
                               "KV cache are kept for the whole context; expected null",
                               window, max_position));
    }
  }
}

// The number of experts, under either of the two names in use.
int parse_num_experts(const JsonFields& config, Architecture architecture) {
  const bool mixtral = architecture == Architecture::kMixtral;
  const char* field = mixtral ? "num_local_experts" : "num_experts";
  const char* other = mixtral ? "num_experts" : "num_local_experts";
  if (!config.has(field) && config.has(other)) std::swap(field, other);
  const int experts = config.integer(field, 1, kMaxExperts);
  if (config.has(other) && config.integer(other, 1, kMaxExperts) != experts) {
    config.wrong(other, fmt::format("{}, as {} says", experts, field));
  }
  return experts;
}

void parse_attention(const JsonFields& config, ModelConfig& model) {
  model.hidden_size = config.integer("hidden_size", 1, kMaxWidth);
  model.num_heads = config.integer("num_attention_heads", 1, kMaxHeads);
  model.num_kv_heads = config.integer_or("num_key_value_heads", model.num_heads, 1, kMaxHeads);
  if (model.num_heads % model.num_kv_heads != 0) {
    config.wrong("num_key_value_heads",
                 fmt::format("a divisor of num_attention_heads {}", model.num_heads));
  }
  if (!config.has("head_dim") && model.hidden_size % model.num_heads != 0) {
    config.missing("head_dim", fmt::format("it, as hidden_size {} is no multiple of "
                                           "num_attention_heads {}",
                                           model.hidden_size, model.num_heads));
  }
  model.head_dim =
      config.integer_or("head_dim", model.hidden_size / model.num_heads, 2, kMaxHeadDim);
  if (model.head_dim < 2 || model.head_dim > kMaxHeadDim || model.head_dim % 2 != 0) {
    config.fault("head_dim",
                 fmt::format("{} is not an even number from 2 to {}", model.head_dim, kMaxHeadDim));
  }
  const double rotary = model.head_dim * model.rope.partial_rotary_factor;
  if (rotary != std::floor(rotary) || static_cast<int>(rotary) % 2 != 0) {
    config.fault("partial_rotary_factor",
                 fmt::format("{} of head_dim {} is not an even number of dimensions",
                             model.rope.partial_rotary_factor, model.head_dim));
  }
}

void parse_experts(const JsonFields& config, ModelConfig& model) {
  const bool mixtral = model.architecture == Architecture::kMixtral;
  model.num_experts = parse_num_experts(config, model.architecture);
  model.experts_per_token = config.integer("num_experts_per_tok", 1, model.num_experts);
  model.moe_intermediate_size =
      config.integer(mixtral ? "intermediate_size" : "moe_intermediate_size", 1, kMaxWidth);
  if (mixtral) return;
  model.norm_topk_prob =
      config.boolean_or("norm_topk_prob", model.architecture == Architecture::kQwen3Next);
  if (model.architecture == Architecture::kQwen3Next) {
    model.shared_expert_intermediate_size =
        config.integer("shared_expert_intermediate_size", 1, kMaxWidth);
  }
}

void parse_linear_attention(const JsonFields& config, ModelConfig& model) {
  model.linear_num_key_heads = config.integer("linear_num_key_heads", 1, kMaxHeads);
  model.linear_num_value_heads = config.integer("linear_num_value_heads", 1, kMaxHeads);
  model.linear_key_head_dim = config.integer("linear_key_head_dim", 1, kMaxHeadDim);
  model.linear_value_head_dim = config.integer("linear_value_head_dim", 1, kMaxHeadDim);
  model.linear_conv_kernel_dim = config.integer("linear_conv_kernel_dim", 2, 64);
  if (model.linear_num_value_heads % model.linear_num_key_heads != 0) {
    config.wrong("linear_num_value_heads",
                 fmt::format("a multiple of linear_num_key_heads {}", model.linear_num_key_heads));
  }
}

AttentionKind parse_layer_type(const JsonFields& config, const nlohmann::json& type, size_t layer,
                               bool linear_allowed) {
  const std::string name = type.is_string() ? type.get<std::string>() : "";
  if (name == "full_attention") return AttentionKind::kFull;
  if (name == "linear_attention" && linear_allowed) return AttentionKind::kLinear;
  config.fault("layer_types", fmt::format("layer {} is {}; expected {}", layer, describe_json(type),
                                          linear_allowed ? "full_attention or linear_attention"
                                                         : "full_attention"));
}

void parse_layer_kinds(const JsonFields& config, ModelConfig& model) {
  const bool hybrid = model.architecture == Architecture::kQwen3Next;
  const int count = model.num_layers();
  if (const nlohmann::json* types = config.find("layer_types")) {
    if (!types->is_array() || types->size() != model.layers.size()) {
      config.wrong("layer_types", fmt::format("a list of {} names, one a layer", count));
    }
    for (size_t i = 0; i < model.layers.size(); ++i) {
      model.layers[i].attention = parse_layer_type(config, (*types)[i], i, hybrid);
    }
  } else if (hybrid) {
    const int interval = config.integer_or("full_attention_interval", 4, 1, kMaxLayers);
    for (int i = 0; i < count; ++i) {
      model.layers[i].attention =
          (i + 1) % interval == 0 ? AttentionKind::kFull : AttentionKind::kLinear;
    }
  }
  if (model.num_full_attention_layers() == 0) {
    config.fault(
        "num_hidden_layers",
        fmt::format("none of the {} layers has full attention; expected at least one", count));
  }
}

void parse_dense_layers(const JsonFields& config, ModelConfig& model) {
  if (model.architecture == Architecture::kMixtral) return;
  const int step = config.integer_or("decoder_sparse_step", 1, 1, kMaxLayers);
  for (int i = 0; i < model.num_layers(); ++i) {
    if ((i + 1) % step != 0) model.layers[i].mlp = MlpKind::kDense;
  }
  if (const nlohmann::json* dense = config.find("mlp_only_layers")) {
    if (!dense->is_array()) config.wrong("mlp_only_layers", "a list of layer numbers");
    for (const nlohmann::json& layer : *dense) {
      if (!layer.is_number_unsigned() || layer.get<uint64_t>() >= model.layers.size()) {
        config.fault("mlp_only_layers", fmt::format("{} is no layer; expected numbers from 0 to {}",
                                                    describe_json(layer), model.num_layers() - 1));
      }
      model.layers[layer.get<size_t>()].mlp = MlpKind::kDense;
    }
  }
  const int moe = model.num_moe_layers();
  if (moe == 0) {
    config.fault("mlp_only_layers",
                 "with decoder_sparse_step it leaves no layer with experts; "
                 "expected a mixture-of-experts model");
  }
  if (moe < model.num_layers()) {
    model.dense_intermediate_size = config.integer("intermediate_size", 1, kMaxWidth);
  }
}

void add_eos_ids(const JsonFields& fields, int vocab_size, std::vector<TokenId>& ids) {
  const auto wrong = [&] {
    fields.wrong("eos_token_id", fmt::format("a token id below vocab_size {}, or a list of at most "
                                             "{} of them",
                                             vocab_size, kMaxEosIds));
  };
  const nlohmann::json* value = fields.find("eos_token_id");
  if (value == nullptr) return;
  const nlohmann::json list = value->is_array() ? *value : nlohmann::json::array({*value});
  if (list.size() > kMaxEosIds) wrong();
  for (const nlohmann::json& id : list) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size)) {
      wrong();
    }
    const auto token = id.get<TokenId>();
    if (std::find(ids.begin(), ids.end(), token) == ids.end()) ids.push_back(token);
  }
}

void check_parameter_count(const JsonFields& config, const ModelConfig& model) {
  const double expert = 3.0 * model.moe_intermediate_size * model.hidden_size;
  const double dense = 3.0 * model.dense_intermediate_size * model.hidden_size;
  const double heads = model.num_heads + model.num_kv_heads;
  const double attention = 3.0 * heads * model.head_dim * model.hidden_size;
  const double linear_heads = model.linear_num_key_heads * 2.0 * model.linear_key_head_dim +
                              model.linear_num_value_heads * 3.0 * model.linear_value_head_dim;
  const double total = model.num_layers() * (model.num_experts * expert + dense + attention +
                                             linear_heads * model.hidden_size) +
                       2.0 * model.vocab_size * model.hidden_size;
  if (total > kMaxParameters) {
    config.fault("hidden_size", fmt::format("with the other sizes it makes {:.3g} parameters; "
                                            "expected at most {:.3g}",
                                            total, kMaxParameters));
  }
}

}  // namespace

size_t dtype_bytes(DType dtype) {
  return dtype == DType::kF32 ? 4 : 2;
}

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kBf16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    case DType::kF32:
      return "float32";
  }
  return "";
}

int ModelConfig::num_moe_layers() const {
  return static_cast<int>(std::count_if(layers.begin(), layers.end(), [](const LayerConfig& layer) {
    return layer.mlp == MlpKind::kMoe;
  }));
}

int ModelConfig::num_full_attention_layers() const {
  return static_cast<int>(std::count_if(layers.begin(), layers.end(), [](const LayerConfig& layer) {
    return layer.attention == AttentionKind::kFull;
  }));
}

std::vector<int> ModelConfig::moe_layers() const {
  std::vector<int> indices;
  for (int i = 0; i < num_layers(); ++i) {
    if (layers[i].mlp == MlpKind::kMoe) indices.push_back(i);
  }
  return indices;
}

ModelConfig parse_model_config(std::string_view text, const std::string& file) {
  const nlohmann::json object = parse_json_object(text, file);
  const JsonFields config(object, file);
  ModelConfig model;
  model.architecture = parse_architecture(config);
  model.model_type = config.string("model_type");
  model.dtype = parse_dtype(config);
  model.vocab_size = config.integer("vocab_size", 1, kMaxVocab);
  model.max_position_embeddings = config.integer("max_position_embeddings", 1, kMaxPosition);
  const bool mixtral = model.architecture == Architecture::kMixtral;
  const bool next = model.architecture == Architecture::kQwen3Next;
  model.rms_norm_eps = config.number_or("rms_norm_eps", mixtral ? 1e-5 : 1e-6, 0.0, 1.0);
  model.tie_word_embeddings = config.boolean_or("tie_word_embeddings", false);
  model.attention_bias = !mixtral && config.boolean_or("attention_bias", false);
  model.qk_norm = !mixtral;
  model.norm_one_plus_weight = next;
  model.attention_output_gate = next;
  refuse_unsupported(config, model.architecture, model.max_position_embeddings);
  model.rope = parse_rope_config(config, model.max_position_embeddings, next ? 0.25 : 1.0);
  parse_attention(config, model);
  parse_experts(config, model);
  model.layers.resize(config.integer("num_hidden_layers", 1, kMaxLayers));
  parse_layer_kinds(config, model);
  parse_dense_layers(config, model);
  if (model.num_full_attention_layers() < model.num_layers()) {
    parse_linear_attention(config, model);
  }
  add_eos_ids(config, model.vocab_size, model.eos_token_ids);
  check_parameter_count(config, model);
  return model;
}

ModelConfig load_model_config(const std::filesystem::path& folder_or_file) {
  namespace fs = std::filesystem;
  std::error_code code;
  const bool folder = fs::is_directory(folder_or_file, code);
  if (!folder && !fs::exists(folder_or_file, code)) {
    throw Error("{}: no such folder; expected a Hugging Face model folder with a config.json",
                folder_or_file.string());
  }
  const fs::path path = folder ? folder_or_file / "config.json" : folder_or_file;
  ModelConfig model = parse_model_config(read_text_file(path), path.string());
  const fs::path generation = path.parent_path() / "generation_config.json";
  if (fs::exists(generation, code)) {
    const nlohmann::json object =
        parse_json_object(read_text_file(generation), generation.string());
    add_eos_ids(JsonFields(object, generation.string()), model.vocab_size, model.eos_token_ids);
  }
  return model;
}

}  // namespace vamp
