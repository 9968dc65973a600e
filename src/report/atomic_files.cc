#include "report/atomic_files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/units.h"

namespace vamp {
namespace {

class OpenFile {
 public:
  OpenFile(const std::string& path, int flags)
      : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) {}
  ~OpenFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

bool write_all(int fd, std::string_view content) {
  while (!content.empty()) {
    const ssize_t wrote = ::write(fd, content.data(), content.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    content.remove_prefix(static_cast<size_t>(wrote));
  }
  return true;
}

}  // namespace

void AtomicFiles::check_folder(const std::string& folder) {
  std::filesystem::path place = std::filesystem::absolute(folder);
  std::error_code fault;
  while (!std::filesystem::exists(place, fault) && place != place.root_path())
    place = place.parent_path();
  const char* why = nullptr;
  if (!std::filesystem::is_directory(place, fault)) {
    why = "is not a folder";
  } else if (::access(place.c_str(), W_OK | X_OK) != 0) {
    why = std::strerror(errno);
  }
  if (why)
    throw Error("cannot write to the folder {}: {}: {}; choose another with --output", folder,
                place.string(), why);
}

AtomicFiles::AtomicFiles(std::string folder) : folder_(std::move(folder)) {
  std::error_code fault;
  for (std::filesystem::path place = std::filesystem::absolute(folder_).lexically_normal();
       !std::filesystem::exists(place, fault) && place.has_relative_path();
       place = place.parent_path()) {
    made_.push_back(place);
  }
  std::filesystem::create_directories(folder_, fault);
  if (fault) {
    remove_made();
    throw Error("cannot make the folder {}: {}; choose another with --output", folder_,
                fault.message());
  }
}

AtomicFiles::~AtomicFiles() {
  for (const auto& [temporary, path] : files_) ::unlink(temporary.c_str());
  remove_made();
}

void AtomicFiles::remove_made() {
  std::error_code fault;  // somebody else's files may be there by now
  for (const std::string& folder : made_) std::filesystem::remove(folder, fault);
}

std::string AtomicFiles::reserve(const std::string& name) {
  const std::string path = folder_ + "/" + name;
  files_.emplace_back(path + "." + std::to_string(::getpid()) + ".tmp", path);
  ::unlink(files_.back().first.c_str());
  return files_.back().first;
}

void AtomicFiles::write(const std::string& name, std::string_view content) {
  const std::string temporary = reserve(name);
  const OpenFile file(temporary, O_WRONLY | O_CREAT | O_TRUNC);
  if (file.fd() < 0 || !write_all(file.fd(), content) || ::fsync(file.fd()) != 0) {
    throw Error(
        "cannot write {} ({}): {}; nothing was written to {}, make room or choose another --output",
        files_.back().second, format_bytes(content.size()), std::strerror(errno), folder_);
  }
}

void AtomicFiles::commit() {
  for (const auto& [temporary, path] : files_) {
    if (std::filesystem::is_directory(path))
      throw Error("cannot write {}: it is a folder; choose another --output", path);
  }
  for (const auto& [temporary, path] : files_) {
    const OpenFile file(temporary, O_RDONLY);
    if (file.fd() < 0 || ::fsync(file.fd()) != 0 ||
        ::rename(temporary.c_str(), path.c_str()) != 0) {
      throw Error("cannot write {}: {}", path, std::strerror(errno));
    }
  }
  files_.clear();
  made_.clear();
}

}  // namespace vamp
