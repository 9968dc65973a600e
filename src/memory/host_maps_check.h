// For tests: does the kernel map what the shadow page table says?
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include "memory/host_virtual_memory.h"
#include "memory/virtual_memory_decorators.h"

namespace vamp::test {

// Holds the shadow's table against /proc/self/maps, page by page.
inline void check_kernel_agrees(const HostVirtualMemory& memory,
                                const ShadowVirtualMemory& shadow) {
  struct KernelMapping {
    uintptr_t begin, end;
    size_t offset;
    std::string access;
  };
  std::vector<KernelMapping> kernel;
  size_t kernel_bytes = 0, shadow_bytes = 0;
  struct stat file;
  ASSERT_EQ(fstat(memory.file_descriptor(), &file), 0);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    uintptr_t begin, end;
    size_t offset, inode;
    char access[5];
    if (line.find("/memfd:vamp") == std::string::npos) continue;
    ASSERT_EQ(std::sscanf(line.c_str(), "%" SCNxPTR "-%" SCNxPTR " %4s %zx %*s %zu", &begin, &end,
                          access, &offset, &inode),
              5);
    if (inode != file.st_ino) continue;  // another HostVirtualMemory's
    kernel.push_back({begin, end, offset, access});
    kernel_bytes += end - begin;
  }
  for (const auto& [address, mapping] : shadow.table()) {
    const auto at = reinterpret_cast<uintptr_t>(address);
    const auto found = std::find_if(kernel.begin(), kernel.end(), [&](const KernelMapping& m) {
      return m.begin <= at && at + mapping.bytes <= m.end;
    });
    ASSERT_NE(found, kernel.end()) << "the kernel does not know a mapping";
    EXPECT_EQ(found->offset + (at - found->begin), memory.file_offset(mapping.handle));
    EXPECT_EQ(found->access, mapping.accessible ? "rw-s" : "---s");
    shadow_bytes += mapping.bytes;
  }
  EXPECT_EQ(kernel_bytes, shadow_bytes);
}

}  // namespace vamp::test
