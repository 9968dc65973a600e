// VirtualMemory on the host: "device memory" is a budget in one memfd.
#pragma once

#include <map>
#include <unordered_map>

#include "memory/virtual_memory.h"

namespace vamp {

struct HostVirtualMemoryOptions {
  // A multiple of the kernel's page (4 KiB): small, so that tiny models have expert groups too.
  size_t granularity = 4096;
  // create() throws once the handles together would exceed it. 0: no bound but the machine's.
  size_t capacity = 0;
};

// A handle is a run of the memfd; mapping is mmap(MAP_SHARED | MAP_FIXED), a hole is PROT_NONE, and
// unmapping maps PROT_NONE over it (munmap would let another thread's mmap take the address).
// Neighbouring handles mapped at neighbouring addresses become one kernel mapping; the kernel
// allows vm.max_map_count (65,530) of them a process, and 4,096 pages scattered at worst cost as
// many.
//
// Memory counts against the machine from the first set_access on, and goes back when its handle is
// destroyed. Misuse is not noticed here; wrap it in ShadowVirtualMemory. One thread.
class HostVirtualMemory final : public VirtualMemory {
 public:
  // Throws Error if the granularity is no multiple of the kernel's page or there is no memfd.
  explicit HostVirtualMemory(HostVirtualMemoryOptions options = {});
  ~HostVirtualMemory() override;
  HostVirtualMemory(const HostVirtualMemory&) = delete;
  HostVirtualMemory& operator=(const HostVirtualMemory&) = delete;

  size_t granularity() const override { return options_.granularity; }
  std::byte* reserve(size_t bytes) override;
  void release(std::byte* address, size_t bytes) override;
  Handle create(size_t bytes) override;
  void destroy(Handle handle) override;
  void map(std::byte* address, size_t bytes, Handle handle) override;
  void unmap(std::byte* address, size_t bytes) override;
  void set_access(std::byte* address, size_t bytes) override;
  void zero_ranges(std::span<const MemoryRange> ranges) override;

  size_t created_bytes() const { return created_; }
  // Where the handle lies in the memfd, as /proc/self/maps shows it.
  size_t file_offset(Handle handle) const { return handles_.at(handle.value).offset; }
  int file_descriptor() const { return fd_; }

 private:
  struct Piece {
    size_t offset;
    size_t bytes;
  };
  size_t allocate(size_t bytes);

  HostVirtualMemoryOptions options_;
  int fd_ = -1;
  size_t file_bytes_ = 0;
  size_t created_ = 0;
  uint64_t next_handle_ = 1;
  std::unordered_map<uint64_t, Piece> handles_;
  std::map<size_t, size_t> gaps_;  // offset → bytes, in the file, never neighbours
};

}  // namespace vamp
