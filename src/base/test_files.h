// Where tests find the repository's own files.
#pragma once

#include <filesystem>

namespace vamp {

inline const std::filesystem::path kGoldenFolder =
    std::filesystem::path(VAMP_SOURCE_DIR) / "tests/golden";
inline const std::filesystem::path kModelsFolder =
    std::filesystem::path(VAMP_SOURCE_DIR) / "tests/data/models";

}  // namespace vamp
