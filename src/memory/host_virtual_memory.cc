#include "memory/host_virtual_memory.h"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/units.h"

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14; missing in older headers
#endif

namespace vamp {
namespace {

[[noreturn]] void fail(const char* what, size_t bytes) {
  const int error = errno;
  const char* way_out =
      error == ENOMEM
          ? "; the memory is used up, or the kernel's limit of mappings a process is reached"
            " (sysctl vm.max_map_count)"
          : "";
  throw Error("host memory: cannot {} {}: {}{}", what, format_bytes(bytes), std::strerror(error),
              way_out);
}

}  // namespace

HostVirtualMemory::HostVirtualMemory(HostVirtualMemoryOptions options) : options_(options) {
  const auto kernel_page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (options.granularity == 0 || options.granularity % kernel_page != 0)
    throw Error("host memory: a page of {} bytes is no multiple of the kernel's {}",
                options.granularity, kernel_page);
  fd_ = memfd_create("vamp", MFD_CLOEXEC);
  if (fd_ < 0) throw Error("host memory: memfd_create failed: {}", std::strerror(errno));
}

HostVirtualMemory::~HostVirtualMemory() {
  close(fd_);
}

std::byte* HostVirtualMemory::reserve(size_t bytes) {
  // Aligned to our page, which may be larger than the kernel's: reserve more and trim both ends.
  const size_t total = bytes + options_.granularity;
  void* raw = mmap(nullptr, total, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) fail("reserve addresses for", bytes);
  auto* begin = static_cast<std::byte*>(raw);
  const size_t off = reinterpret_cast<uintptr_t>(begin) % options_.granularity;
  const size_t head = off == 0 ? 0 : options_.granularity - off;
  if (head > 0) munmap(begin, head);
  if (total > head + bytes) munmap(begin + head + bytes, total - head - bytes);
  return begin + head;
}

void HostVirtualMemory::release(std::byte* address, size_t bytes) {
  if (munmap(address, bytes) != 0) fail("release addresses of", bytes);
}

size_t HostVirtualMemory::allocate(size_t bytes) {
  for (auto gap = gaps_.begin(); gap != gaps_.end(); ++gap) {
    if (gap->second < bytes) continue;
    const auto [offset, size] = *gap;
    gaps_.erase(gap);
    if (size > bytes) gaps_.emplace(offset + bytes, size - bytes);
    return offset;
  }
  if (ftruncate(fd_, static_cast<off_t>(file_bytes_ + bytes)) != 0) fail("create", bytes);
  file_bytes_ += bytes;
  return file_bytes_ - bytes;
}

Handle HostVirtualMemory::create(size_t bytes) {
  if (options_.capacity != 0 && created_ + bytes > options_.capacity)
    throw Error("host memory: cannot create {}: {} of the budget of {} are in use",
                format_bytes(bytes), format_bytes(created_), format_bytes(options_.capacity));
  const size_t offset = allocate(bytes);
  created_ += bytes;
  const Handle handle{next_handle_++};
  handles_.emplace(handle.value, Piece{offset, bytes});
  return handle;
}

void HostVirtualMemory::destroy(Handle handle) {
  const auto found = handles_.find(handle.value);
  VAMP_CHECK(found != handles_.end(), "handle {} does not exist", handle.value);
  auto [offset, bytes] = found->second;
  if (fallocate(fd_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                static_cast<off_t>(bytes)) != 0)
    fail("destroy", bytes);
  handles_.erase(found);
  created_ -= bytes;
  auto next = gaps_.upper_bound(offset);
  if (next != gaps_.end() && offset + bytes == next->first) {
    bytes += next->second;
    next = gaps_.erase(next);
  }
  if (next != gaps_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += bytes;
      return;
    }
  }
  gaps_.emplace(offset, bytes);
}

void HostVirtualMemory::map(std::byte* address, size_t bytes, Handle handle) {
  const Piece& piece = handles_.at(handle.value);
  VAMP_CHECK(piece.bytes == bytes, "handle {} has {} bytes, not {}", handle.value, piece.bytes,
             bytes);
  // Without access, like the device: a forgotten set_access shows here too.
  if (mmap(address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, fd_,
           static_cast<off_t>(piece.offset)) == MAP_FAILED)
    fail("map", bytes);
}

void HostVirtualMemory::unmap(std::byte* address, size_t bytes) {
  if (mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1,
           0) == MAP_FAILED)
    fail("unmap", bytes);
}

void HostVirtualMemory::set_access(std::byte* address, size_t bytes) {
  if (mprotect(address, bytes, PROT_READ | PROT_WRITE) != 0) fail("set access to", bytes);
  // All pages in one call instead of one fault each on first touch: a move is five times as fast,
  // and a machine that is out of memory says so here and not by SIGBUS. Kernels before 5.14 don't
  // know it.
  if (madvise(address, bytes, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
    const int error = errno;
    mprotect(address, bytes, PROT_NONE);
    errno = error;
    fail("take", bytes);
  }
}

void HostVirtualMemory::zero_ranges(std::span<const MemoryRange> ranges) {
  for (const MemoryRange& range : ranges) std::memset(range.address, 0, range.bytes);
}

}  // namespace vamp
