#include "exec/host_tier_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace vamp {

HostTierMemory::HostTierMemory(size_t bytes, size_t block_bytes, const std::filesystem::path& file)
    : blocks_(static_cast<int>(bytes / block_bytes)), block_bytes_(block_bytes) {
  if (blocks_ == 0) return;
  if (!file.empty()) {
    map_file(file);
    return;
  }
  void* memory = mmap(nullptr, blocks_ * block_bytes_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    throw Error("host tier: can't reserve {} of memory: {}; lower kv_offloading_size",
                format_bytes(blocks_ * block_bytes_), std::strerror(errno));
  }
  base_ = static_cast<std::byte*>(memory);
}

void HostTierMemory::map_file(const std::filesystem::path& file) {
  const size_t bytes = blocks_ * block_bytes_;
  const int fd = open(file.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) throw Error("host tier: can't create {}: {}", file.string(), std::strerror(errno));
  // All of it now: a write through a mapping to a full disk would kill the process.
  const int failed = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  void* memory =
      failed ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int reason = failed ? failed : errno;
  close(fd);
  if (memory == MAP_FAILED) {
    unlink(file.c_str());
    throw Error(
        "host tier: can't make {} {} long: {}; lower kv_offloading_size or name another file",
        file.string(), format_bytes(bytes), std::strerror(reason));
  }
  base_ = static_cast<std::byte*>(memory);
  file_ = file;
}

HostTierMemory::~HostTierMemory() {
  if (base_ != nullptr) munmap(base_, blocks_ * block_bytes_);
  if (!file_.empty()) unlink(file_.c_str());
}

std::byte* HostTierMemory::block(HostBlockId id) const {
  VAMP_CHECK(id >= 0 && id < blocks_, "host block {} of {}", id, blocks_);
  return base_ + static_cast<size_t>(id) * block_bytes_;
}

}  // namespace vamp
