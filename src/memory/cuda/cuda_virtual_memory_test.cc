#include "memory/cuda/cuda_virtual_memory.h"

#include <gtest/gtest.h>

#include "memory/virtual_memory_conformance.h"

namespace vamp::test {
namespace {

class CudaBackend {
 public:
  static std::optional<std::string> unavailable() { return cuda_memory_unavailable(0); }
  VirtualMemory& memory() { return memory_; }
  void write(std::byte* to, const std::vector<std::byte>& bytes) {
    check_cuda(cudaMemcpy(to, bytes.data(), bytes.size(), cudaMemcpyHostToDevice),
               "a test's write");
  }
  std::vector<std::byte> read(const std::byte* from, size_t bytes) {
    std::vector<std::byte> result(bytes);
    check_cuda(cudaMemcpy(result.data(), from, bytes, cudaMemcpyDeviceToHost), "a test's read");
    return result;
  }
  size_t too_much() {
    size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "asking for the device's memory");
    return (total / memory_.granularity() + 1) * memory_.granularity();
  }
  void check_agrees(const ShadowVirtualMemory& shadow) {
    for (const auto& [address, mapping] : shadow.table()) {
      for (size_t offset = 0; offset < mapping.bytes; offset += memory_.granularity()) {
        const auto driver = memory_.driver_mapping(address + offset);
        ASSERT_TRUE(driver) << "the driver does not know a mapping";
        EXPECT_EQ(driver->handle, mapping.handle);
        EXPECT_EQ(driver->accessible, mapping.accessible);
      }
    }
    for (const std::byte* hole : shadow.holes())
      EXPECT_FALSE(memory_.driver_mapping(const_cast<std::byte*>(hole)));
  }

 private:
  CudaVirtualMemory memory_{0};
};

INSTANTIATE_TYPED_TEST_SUITE_P(Cuda, VirtualMemoryConformance, CudaBackend);

TEST(CudaVirtualMemory, ItsLedgerIsTheDrivers) {
  if (const auto why = cuda_memory_unavailable(0)) GTEST_SKIP() << *why;
  CudaVirtualMemory memory(0);
  const auto free_bytes = [] {
    size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "asking for the device's memory");
    return free;
  };
  const size_t before = free_bytes();
  std::vector<Handle> handles;
  for (int i = 0; i < 32; ++i) handles.push_back(memory.create((1 + i % 3) * memory.granularity()));
  EXPECT_EQ(before - free_bytes(), memory.created_bytes());
  for (const Handle handle : handles) memory.destroy(handle);
  EXPECT_EQ(before, free_bytes());
  EXPECT_EQ(memory.created_bytes(), 0u);
}

TEST(CudaVirtualMemory, SaysWhyItCannotBeUsed) {
  const auto why = cuda_memory_unavailable(99);
  ASSERT_TRUE(why);
  EXPECT_NE(why->find("no CUDA device"), std::string::npos) << *why;
  EXPECT_THROW(CudaVirtualMemory(99), Error);
}

}  // namespace
}  // namespace vamp::test
