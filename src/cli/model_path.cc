#include "cli/model_path.h"

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "base/file.h"

namespace vamp {

namespace fs = std::filesystem;

fs::path hub_cache() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return fs::path(value ? value : "");
  };
  if (const fs::path cache = variable("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const fs::path home = variable("HF_HOME"); !home.empty()) return home / "hub";
  return variable("HOME") / ".cache" / "huggingface" / "hub";
}

fs::path find_model(const std::string& model, const fs::path& cache) {
  std::error_code code;
  if (fs::exists(model, code)) return model;
  const bool hub_id = std::count(model.begin(), model.end(), '/') == 1 && model.front() != '/' &&
                      model.front() != '.' && model.back() != '/';
  if (!hub_id) throw Error("{}: no such folder", model);
  std::string name = "models--" + model;
  name.replace(name.find('/'), 1, "--");
  const fs::path main = cache / name / "refs" / "main";
  if (fs::exists(main, code)) {
    std::string revision = read_text_file(main, 4096);
    revision.erase(std::remove_if(revision.begin(), revision.end(), ::isspace), revision.end());
    const fs::path snapshot = cache / name / "snapshots" / revision;
    if (fs::exists(snapshot / "config.json", code)) return snapshot;
  }
  throw Error(
      "{}: neither a folder nor in the Hugging Face cache {}; fetch it with: "
      "huggingface-cli download {}",
      model, cache.string(), model);
}

}  // namespace vamp
