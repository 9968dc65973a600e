// Whole small files (configs, indexes) as text.
#pragma once

#include <filesystem>
#include <string>

#include "base/units.h"

namespace vamp {

// The whole file. Throws Error naming the path when it cannot be read, is not a regular file, or
// holds more than `max_bytes`: a config of gigabytes is a mistake or an attack, never a config.
std::string read_text_file(const std::filesystem::path& path, size_t max_bytes = 64 * kMiB);

}  // namespace vamp
