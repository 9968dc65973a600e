#include "memory/host_virtual_memory.h"

#include <gtest/gtest.h>

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

TEST(HostVirtualMemoryDeathTest, HolesAndMappingsWithoutAccessFault) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  HostVirtualMemory memory;
  std::byte* range = memory.reserve(2 * 4096);
  const Handle handle = memory.create(4096);
  memory.map(range, 4096, handle);
  EXPECT_DEATH(range[0] = std::byte{1}, "");  // set_access was forgotten
  memory.set_access(range, 4096);
  range[0] = std::byte{1};
  EXPECT_DEATH(range[4096] = std::byte{1}, "");
  memory.unmap(range, 4096);
  EXPECT_DEATH(range[0] = std::byte{1}, "");
}

}  // namespace
}  // namespace vamp::test
