#include "model/rope_config.h"

#include "base/error.h"

namespace vamp {
namespace {

constexpr int kMaxPosition = 1 << 28;

RopeConfig::Scaling parse_scaling(const JsonFields& fields) {
  // transformers 4 wrote `type` before it wrote `rope_type`.
  const char* field = fields.has("rope_type") || !fields.has("type") ? "rope_type" : "type";
  if (!fields.has(field)) return RopeConfig::Scaling::kDefault;
  const std::string type = fields.string(field);
  if (type == "default") return RopeConfig::Scaling::kDefault;
  if (type == "linear") return RopeConfig::Scaling::kLinear;
  if (type == "llama3") return RopeConfig::Scaling::kLlama3;
  if (type == "yarn") return RopeConfig::Scaling::kYarn;
  fields.wrong(field, "default, linear, llama3 or yarn");
}

int parse_original_length(const JsonFields& config, const JsonFields& scaling,
                          int max_position_embeddings) {
  constexpr const char* kField = "original_max_position_embeddings";
  if (config.has(kField)) return config.integer(kField, 1, kMaxPosition);
  return scaling.integer_or(kField, max_position_embeddings, 1, kMaxPosition);
}

void parse_llama3(const JsonFields& fields, RopeConfig& rope) {
  rope.low_freq_factor = fields.number("low_freq_factor", 1e-3, 1e3);
  rope.high_freq_factor = fields.number("high_freq_factor", 1e-3, 1e3);
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    fields.fault("high_freq_factor", fmt::format("{} must be greater than low_freq_factor {}",
                                                 rope.high_freq_factor, rope.low_freq_factor));
  }
}

void parse_yarn(const JsonFields& fields, RopeConfig& rope) {
  rope.beta_fast = fields.number_or("beta_fast", 32.0, 1e-3, 1e6);
  rope.beta_slow = fields.number_or("beta_slow", 1.0, 1e-3, 1e6);
  if (rope.beta_fast < rope.beta_slow) {
    fields.fault("beta_fast", fmt::format("{} must not be less than beta_slow {}", rope.beta_fast,
                                          rope.beta_slow));
  }
  rope.attention_factor = fields.optional_number("attention_factor", 1e-6, 1e6);
  rope.mscale = fields.optional_number("mscale", 0, 1e6);
  rope.mscale_all_dim = fields.optional_number("mscale_all_dim", 0, 1e6);
  rope.truncate = fields.boolean_or("truncate", true);
}

}  // namespace

RopeConfig parse_rope_config(const JsonFields& config, int max_position_embeddings,
                             double default_partial) {
  const std::optional<JsonFields> nested =
      config.nested(config.has("rope_parameters") ? "rope_parameters" : "rope_scaling");
  const JsonFields& scaling = nested ? *nested : config;

  RopeConfig rope;
  const bool nested_theta = nested && nested->has("rope_theta");
  rope.theta = (nested_theta ? *nested : config).number("rope_theta", 1.0, 1e15);
  const bool nested_partial = nested && nested->has("partial_rotary_factor");
  rope.partial_rotary_factor =
      (nested_partial ? *nested : config)
          .number_or("partial_rotary_factor", default_partial, 1.0 / 4096, 1.0);
  if (!nested) return rope;

  rope.scaling = parse_scaling(scaling);
  if (rope.scaling == RopeConfig::Scaling::kDefault) return rope;
  if (rope.scaling != RopeConfig::Scaling::kLinear) {
    rope.original_max_position = parse_original_length(config, scaling, max_position_embeddings);
  }
  // transformers derives yarn's factor from the two lengths when it is not given.
  const bool derived = rope.scaling == RopeConfig::Scaling::kYarn && !scaling.has("factor") &&
                       rope.original_max_position <= max_position_embeddings;
  rope.factor = derived ? static_cast<double>(max_position_embeddings) / rope.original_max_position
                        : scaling.number("factor", 1.0, 1e6);
  if (rope.scaling == RopeConfig::Scaling::kLlama3) parse_llama3(scaling, rope);
  if (rope.scaling == RopeConfig::Scaling::kYarn) parse_yarn(scaling, rope);
  return rope;
}

}  // namespace vamp
