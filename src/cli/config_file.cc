#include "cli/config_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>

#include "base/error.h"
#include "base/file.h"

namespace vamp {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;

// "--max-model-len" of "--max-model-len=4096"; a short form by its long name.
std::string flag_name(const std::string& arg) {
  if (arg == "-tp" || arg.starts_with("-tp=")) return "--tensor-parallel-size";
  return arg.substr(0, arg.find('='));
}

bool given(const std::vector<std::string>& args, const std::string& flag) {
  return std::any_of(args.begin(), args.end(), [&](const std::string& arg) {
    const std::string name = flag_name(arg);
    return name == flag || name == "--no-" + flag.substr(2);
  });
}

std::string scalar(const YAML::Node& value, const std::string& path, const std::string& key) {
  if (!value.IsScalar()) throw Error("{}: {} is neither a value nor a list of values", path, key);
  return value.Scalar();
}

// The flag that a key stands for. Keys like "max_model_len" are vLLM's.
std::string flag_of(const std::string& path, const YAML::Node& key) {
  std::string name = key.IsScalar() ? key.Scalar() : "";
  std::replace(name.begin(), name.end(), '_', '-');
  const auto fits = [](unsigned char c) { return std::isalnum(c) || c == '-'; };
  if (name.empty() || name.front() == '-' || !std::all_of(name.begin(), name.end(), fits))
    throw Error("{}:{}: the key is not a flag's name without dashes, like \"port\"", path,
                key.Mark().line + 1);
  if (name == "config") throw Error("{}: config: a file of flags names no other", path);
  return "--" + name;
}

void add_flag(const std::string& path, const std::string& key, const std::string& flag,
              const YAML::Node& value, std::vector<std::string>& out) {
  if (value.IsNull())
    throw Error("{}: {} has no value: write \"{}: VALUE\", or leave the line out", path, key, key);
  if (value.IsSequence()) {
    for (const YAML::Node& entry : value) {
      out.push_back(flag);
      out.push_back(scalar(entry, path, key));
    }
    return;
  }
  const std::string text = scalar(value, path, key);
  bool on = false;
  const bool quoted = value.Tag() == "!";
  if (!quoted && text.size() > 1 && YAML::convert<bool>::decode(value, on)) {
    // Bound to the flag: one that takes a value must not take the next flag for it.
    out.push_back(flag + (on ? "=true" : "=false"));
    return;
  }
  out.push_back(flag);
  out.push_back(text);
}

YAML::Node read_yaml(const std::string& path) {
  try {
    YAML::Node node = YAML::Load(read_text_file(path, kMaxConfigBytes));
    if (!node.IsMap()) throw Error("{}: expected flags, one a line, like \"port: 8000\"", path);
    return node;
  } catch (const YAML::Exception& error) {
    throw Error("{}:{}: not valid YAML: {}", path, error.mark.line + 1, error.msg);
  }
}

}  // namespace

std::vector<std::string> expand_config(std::vector<std::string> args) {
  if (args.empty() || args.front() != "serve") return args;
  const auto at = std::find_if(args.begin(), args.end(),
                               [](const std::string& arg) { return flag_name(arg) == "--config"; });
  if (at == args.end()) return args;
  std::string path;
  if (const auto equals = at->find('='); equals != std::string::npos) {
    path = at->substr(equals + 1);
    args.erase(at);
  } else {
    if (at + 1 == args.end()) throw Error("--config: give a file");
    path = *(at + 1);
    args.erase(at, at + 2);
  }
  if (std::any_of(args.begin(), args.end(),
                  [](const std::string& arg) { return flag_name(arg) == "--config"; }))
    throw Error("--config is given twice: put the flags into one file");
  const bool has_model = args.size() > 1 && !args[1].starts_with("-");
  std::vector<std::string> added;
  for (const auto& entry : read_yaml(path)) {
    const std::string flag = flag_of(path, entry.first), key = entry.first.Scalar();
    if (key == "model") {
      if (!has_model) added.insert(added.begin(), scalar(entry.second, path, key));
    } else if (!given(args, flag)) {
      add_flag(path, key, flag, entry.second, added);
    }
  }
  args.insert(args.begin() + (has_model ? 2 : 1), added.begin(), added.end());
  return args;
}

}  // namespace vamp
