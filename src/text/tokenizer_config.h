// What tokenizer_config.json and its neighbours say beside tokenizer.json.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace vamp {

struct TokenizerConfig {
  std::string bos_token, eos_token, pad_token, unk_token;  // empty: none
  // Jinja text by name: "default", and others ("tool_use", "rag") where the file has several.
  std::map<std::string, std::string> chat_templates;
};

// Reads tokenizer_config.json, chat_template.jinja and chat_template.json of a model folder, each
// where present; chat_template.jinja wins. Throws Error on a file that is not what it should be.
TokenizerConfig load_tokenizer_config(const std::filesystem::path& folder);

}  // namespace vamp
