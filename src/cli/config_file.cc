#include "cli/config_file.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>

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

void add_flag(const std::string& path, const std::string& key, const YAML::Node& value,
              std::vector<std::string>& out) {
  std::string flag = "--" + key;
  std::replace(flag.begin(), flag.end(), '_', '-');
  if (value.IsSequence()) {
    for (const YAML::Node& entry : value) {
      out.push_back(flag);
      out.push_back(scalar(entry, path, key));
    }
    return;
  }
  const std::string text = value.IsNull() ? "true" : scalar(value, path, key);
  if (text == "true" || text == "false") {
    if (text == "true") out.push_back(flag);
    if (text == "false" && key.starts_with("enable")) out.push_back("--no-" + flag.substr(2));
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
  const bool has_model = args.size() > 1 && !args[1].starts_with("-");
  std::vector<std::string> added;
  for (const auto& entry : read_yaml(path)) {
    const std::string key = entry.first.as<std::string>();
    if (key == "model") {
      if (!has_model) added.insert(added.begin(), scalar(entry.second, path, key));
      continue;
    }
    std::string flag = "--" + key;
    std::replace(flag.begin(), flag.end(), '_', '-');
    if (!given(args, flag)) add_flag(path, key, entry.second, added);
  }
  args.insert(args.begin() + (has_model ? 2 : 1), added.begin(), added.end());
  return args;
}

}  // namespace vamp
