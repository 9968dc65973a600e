#include "replay/trace_source.h"

#include <zlib.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <memory>
#include <string_view>

#include "base/error.h"

namespace vamp {
namespace {

namespace fs = std::filesystem;

constexpr size_t kTarBlock = 512;

// What may be read in all, and what of it is left.
struct Allowance {
  size_t bytes, left;
};

// zlib reads a file that is not gzip as it is.
std::string read_file(const fs::path& path, Allowance& allowance) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), &gzclose_r);
  if (!file)
    throw Error("trace {}: cannot be opened; check the path and its permissions", path.string());
  std::string text;
  char buffer[1 << 16];
  int got = 0;
  while ((got = gzread(file.get(), buffer, sizeof buffer)) > 0) {
    text.append(buffer, static_cast<size_t>(got));
    if (text.size() > allowance.left) {
      throw Error("trace {}: more than {} of text; use a smaller trace, or raise --max-trace-bytes",
                  path.string(), format_bytes(allowance.bytes));
    }
  }
  int code = Z_OK;
  const char* fault = gzerror(file.get(), &code);
  // A gzip stream that simply stops reads as an end of file with Z_BUF_ERROR.
  if (got < 0 || code != Z_OK) {
    throw Error("trace {}: damaged or truncated gzip data ({}); copy the file again", path.string(),
                code == Z_ERRNO ? "read error" : fault);
  }
  allowance.left -= text.size();
  return text;
}

bool is_tar(const std::string& text) {
  return text.size() >= kTarBlock && std::string_view(text).substr(257, 5) == "ustar";
}

std::string_view c_string(std::string_view field) {
  return field.substr(0, field.find('\0'));
}

bool is_data(const std::string& name) {
  const std::string base = fs::path(name).filename().string();
  return !base.empty() && base[0] != '.' && base.rfind("README", 0) != 0 &&
         base.rfind("LICENSE", 0) != 0;
}

// POSIX ustar: a 512-byte header (name, octal size at 124, type at 156), then the data padded to
// 512.
void append_tar_members(const std::string& archive, const std::string& tar,
                        std::vector<TraceDocument>& documents) {
  const std::string_view all = tar;
  for (size_t at = 0; at + kTarBlock <= all.size() && all[at] != '\0';) {
    const std::string_view header = all.substr(at, kTarBlock);
    const std::string name(c_string(header.substr(0, 100)));
    std::string_view digits = c_string(header.substr(124, 12));
    digits.remove_prefix(std::min(digits.find_first_not_of(' '), digits.size()));
    size_t size = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), size, 8);
    at += kTarBlock;
    if (parsed.ec != std::errc() || size > all.size() - at) {
      throw Error("trace {}: damaged or truncated tar archive at member \"{}\"", archive, name);
    }
    const char type = header[156];
    if ((type == '0' || type == '\0') && is_data(name)) {
      documents.push_back({archive + ":" + name, std::string(all.substr(at, size))});
    }
    at += std::min((size + kTarBlock - 1) / kTarBlock * kTarBlock, all.size() - at);
  }
}

void append_file(const fs::path& path, Allowance& allowance,
                 std::vector<TraceDocument>& documents) {
  std::string text = read_file(path, allowance);
  if (is_tar(text)) {
    append_tar_members(path.string(), text, documents);
  } else {
    documents.push_back({path.string(), std::move(text)});
  }
}

}  // namespace

std::vector<TraceDocument> read_trace_documents(const std::string& path, size_t max_bytes) {
  std::error_code fault;
  const fs::file_status status = fs::status(path, fault);
  if (!fs::exists(status)) throw Error("trace {}: no such file or folder", path);
  std::vector<TraceDocument> documents;
  Allowance allowance{max_bytes, max_bytes};
  if (fs::is_directory(status)) {
    for (const auto& entry : fs::recursive_directory_iterator(path)) {
      if (!entry.is_regular_file() || !is_data(entry.path().string())) continue;
      append_file(entry.path(), allowance, documents);
    }
  } else if (fs::is_regular_file(status) || fs::is_fifo(status)) {
    append_file(path, allowance, documents);
  } else {
    throw Error("trace {}: is neither a file, a pipe nor a folder", path);
  }
  if (documents.empty()) throw Error("trace {}: holds no trace file", path);
  std::sort(documents.begin(), documents.end(),
            [](const TraceDocument& a, const TraceDocument& b) { return a.name < b.name; });
  return documents;
}

}  // namespace vamp
