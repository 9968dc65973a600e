// Where a model lies: a folder, or a Hub id in the local Hugging Face cache.
#pragma once

#include <filesystem>
#include <string>

namespace vamp {

// `model` itself when it is a folder or file; else its newest snapshot in `cache`
// (models--org--name). Throws Error that gives the command which fetches it.
std::filesystem::path find_model(const std::string& model, const std::filesystem::path& cache);

// HF_HUB_CACHE, HF_HOME/hub or ~/.cache/huggingface/hub: where Hugging Face's own tools put models.
std::filesystem::path hub_cache();

}  // namespace vamp
