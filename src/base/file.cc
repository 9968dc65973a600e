#include "base/file.h"

#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/error.h"

namespace vamp {

std::string read_text_file(const std::filesystem::path& path, size_t max_bytes) {
  std::error_code code;
  if (!std::filesystem::is_regular_file(path, code)) {
    throw Error("{}: {}", path.string(),
                code                            ? code.message()
                : std::filesystem::exists(path) ? "is not a file"
                                                : "no such file");
  }
  errno = 0;
  std::ifstream stream(path, std::ios::binary);
  if (!stream) throw Error("{}: cannot be opened: {}", path.string(), std::strerror(errno));
  const size_t size = std::filesystem::file_size(path);
  if (size > max_bytes) {
    throw Error("{}: holds {}, more than the {} allowed for such a file", path.string(),
                format_bytes(size), format_bytes(max_bytes));
  }
  std::string text(size, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(size));
  text.resize(static_cast<size_t>(stream.gcount()));
  if (stream.bad()) throw Error("{}: cannot be read: {}", path.string(), std::strerror(errno));
  return text;
}

}  // namespace vamp
