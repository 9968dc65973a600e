// The KV cache's second tier: blocks in host memory, or in a file where there is no GPU to spare.
#pragma once

#include <cstddef>
#include <filesystem>

#include "model/memory_layout.h"

namespace vamp {

// Owns `blocks()` places of block_bytes each. Memory is taken from the system as places are first
// written; a file is made as long as all of them at once, so that a full disk shows at start.
class HostTierMemory {
 public:
  // `bytes` is rounded down to whole blocks. `file` empty: anonymous memory; else it is created, or
  // overwritten, and removed again at the end. Throws Error when the memory or file can't be had.
  HostTierMemory(size_t bytes, size_t block_bytes, const std::filesystem::path& file);
  ~HostTierMemory();
  HostTierMemory(const HostTierMemory&) = delete;
  HostTierMemory& operator=(const HostTierMemory&) = delete;

  int blocks() const { return blocks_; }
  std::byte* block(HostBlockId id) const;

 private:
  void map_file(const std::filesystem::path& file);

  int blocks_;
  size_t block_bytes_;
  std::byte* base_ = nullptr;
  std::filesystem::path file_;
};

}  // namespace vamp
