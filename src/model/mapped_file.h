// A whole file mapped read-only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>

namespace vamp {

// Owns the mapping. Pages come and go as memory allows: nothing is read until it is touched. A file
// that is cut short while it is mapped kills the process that touches the missing part (SIGBUS), as
// with every mapped file. Move-only; read from any thread.
class MappedFile {
 public:
  // Throws Error naming the path and the system's reason.
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Tells the kernel that the pages wholly inside [offset, offset + size) are not needed for now.
  void release(size_t offset, size_t size) const;

 private:
  std::byte* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace vamp
