#include "memory/host_virtual_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>

#include "memory/host_maps_check.h"
#include "memory/virtual_memory_conformance.h"

namespace vamp::test {
namespace {

template <size_t kPage>
class HostBackend {
 public:
  static std::optional<std::string> unavailable() { return std::nullopt; }
  VirtualMemory& memory() { return memory_; }
  void write(std::byte* to, const std::vector<std::byte>& bytes) {
    std::memcpy(to, bytes.data(), bytes.size());
  }
  std::vector<std::byte> read(const std::byte* from, size_t bytes) { return {from, from + bytes}; }
  size_t too_much() { return 256 * kPage; }
  void check_agrees(const ShadowVirtualMemory& shadow) { check_kernel_agrees(memory_, shadow); }

 private:
  HostVirtualMemory memory_{{.granularity = kPage, .capacity = 64 * kPage}};
};

using Backends = testing::Types<HostBackend<4096>, HostBackend<16384>>;
INSTANTIATE_TYPED_TEST_SUITE_P(Host, VirtualMemoryConformance, Backends);

TEST(HostVirtualMemory, RefusesAPageThatTheKernelCannotMap) {
  EXPECT_THROW(HostVirtualMemory({.granularity = 1000}), Error);
  EXPECT_THROW(HostVirtualMemory({.granularity = 0}), Error);
}

TEST(HostVirtualMemory, DestroyedMemoryIsUsedAgain) {
  HostVirtualMemory memory({.capacity = 8 * 4096});
  std::vector<Handle> handles;
  for (int i = 0; i < 8; ++i) handles.push_back(memory.create(4096));
  EXPECT_THROW(memory.create(4096), Error);
  // Neighbours that went in any order make one gap.
  for (const int i : {2, 4, 3}) memory.destroy(handles[i]);
  const Handle three = memory.create(3 * 4096);
  EXPECT_EQ(memory.file_offset(three), 2u * 4096);
  EXPECT_EQ(memory.created_bytes(), 8u * 4096);
}

// Whether the kernel may read and write a byte there; touching it from here would end the test.
bool accessible(std::byte* address) {
  const int zeros = open("/dev/zero", O_RDONLY);
  const bool writable = read(zeros, address, 1) == 1;
  struct iovec from = {address, 1};
  std::byte byte;
  struct iovec to = {&byte, 1};
  const bool readable = process_vm_readv(getpid(), &to, 1, &from, 1, 0) == 1;
  close(zeros);
  EXPECT_EQ(writable, readable);
  return writable;
}

TEST(HostVirtualMemory, HolesAndMappingsWithoutAccessFault) {
  HostVirtualMemory memory;
  std::byte* range = memory.reserve(2 * 4096);
  const Handle handle = memory.create(4096);
  EXPECT_FALSE(accessible(range));
  memory.map(range, 4096, handle);
  EXPECT_FALSE(accessible(range));  // before set_access
  memory.set_access(range, 4096);
  EXPECT_TRUE(accessible(range));
  EXPECT_FALSE(accessible(range + 4096));
  memory.unmap(range, 4096);
  EXPECT_FALSE(accessible(range));
}

}  // namespace
}  // namespace vamp::test
