#include "text/tokenizer_config.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "text/json_fields.h"

namespace vamp {
namespace {

using json_fields::Json;

constexpr size_t kMaxConfigBytes = 16 * kMiB;

// "</s>" or {"content": "</s>", …}.
std::string token_of(const Json& config, const char* key) {
  const Json& value = json_fields::optional(config, key, "the file");
  if (value.is_null()) return {};
  if (value.is_string()) return value.get<std::string>();
  return json_fields::string(value, "content", key);
}

// A string, or [{"name": "default", "template": "…"}, …].
void read_templates(const Json& value, std::map<std::string, std::string>& out) {
  if (value.is_null()) return;
  if (value.is_string()) {
    out["default"] = value.get<std::string>();
    return;
  }
  if (!value.is_array()) throw Error("\"chat_template\" is neither a string nor a list");
  for (const Json& entry : value) {
    out[json_fields::string(entry, "name", "chat_template")] =
        json_fields::string(entry, "template", "chat_template");
  }
}

void read_config(const Json& json, TokenizerConfig& config) {
  config.bos_token = token_of(json, "bos_token");
  config.eos_token = token_of(json, "eos_token");
  config.pad_token = token_of(json, "pad_token");
  config.unk_token = token_of(json, "unk_token");
  read_templates(json_fields::optional(json, "chat_template", "the file"), config.chat_templates);
}

template <typename Read>
void with_json(const std::filesystem::path& path, Read read) {
  if (!std::filesystem::exists(path)) return;
  const std::string text = read_text_file(path, kMaxConfigBytes);
  try {
    read(Json::parse(text));
  } catch (const Error& error) {
    throw Error("{}: {}", path.string(), error.what());
  } catch (const Json::exception& error) {
    throw Error("{}: not valid JSON: {}", path.string(), error.what());
  }
}

}  // namespace

TokenizerConfig load_tokenizer_config(const std::filesystem::path& folder) {
  TokenizerConfig config;
  with_json(folder / "tokenizer_config.json", [&](const Json& json) { read_config(json, config); });
  with_json(folder / "chat_template.json", [&](const Json& json) {
    read_templates(json_fields::optional(json, "chat_template", "the file"), config.chat_templates);
  });
  const auto jinja = folder / "chat_template.jinja";
  if (std::filesystem::exists(jinja)) {
    config.chat_templates["default"] = read_text_file(jinja, kMaxConfigBytes);
  }
  return config;
}

}  // namespace vamp
