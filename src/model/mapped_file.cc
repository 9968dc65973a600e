#include "model/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"

namespace vamp {

MappedFile::MappedFile(const std::filesystem::path& path) {
  // Non-blocking: a pipe in a file's place is refused below instead of waited for.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) throw Error("{}: cannot be opened: {}", path.string(), std::strerror(errno));
  struct stat status {};
  const bool regular = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  size_ = regular ? static_cast<size_t>(status.st_size) : 0;
  void* address = nullptr;
  if (size_ > 0) address = ::mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
  const int fault = errno;
  ::close(file);
  if (!regular) throw Error("{}: is not a file", path.string());
  if (address == MAP_FAILED) {
    throw Error("{}: cannot be mapped ({} bytes): {}", path.string(), size_, std::strerror(fault));
  }
  data_ = static_cast<std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

void MappedFile::release(size_t offset, size_t size) const {
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t first = (offset + page - 1) / page * page;
  const size_t last = (offset + size) / page * page;
  // Advice only: a refusal changes nothing that anyone could act on.
  if (last > first) ::madvise(data_ + first, last - first, MADV_DONTNEED);
}

}  // namespace vamp
