// What the tests of this folder share: a small partition on the device. Pages are 2 MiB there, so
// an expert is 3 MiB and a group 6.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "memory/cuda/cuda_virtual_memory.h"
#include "memory/cuda/pinned_experts.h"
#include "memory/memory_test_support.h"
#include "memory/virtual_memory_decorators.h"

namespace vamp::test {

struct CudaWorld {
  explicit CudaWorld(int groups_out = 0, bool first_moe_layer_resident = true)
      : layout(small_layout({.moe_layers = 6,
                             .first_moe_layer_resident = first_moe_layer_resident,
                             .page = device.granularity()})),
        partition(layout, groups_out, shadow, pinned) {}

  std::vector<std::byte> read(const std::byte* from, size_t bytes) const {
    std::vector<std::byte> result(bytes);
    check_cuda(cudaMemcpy(result.data(), from, bytes, cudaMemcpyDeviceToHost), "a test's read");
    return result;
  }
  bool expert_right(int m, int e) const {
    return source.right(m, e, read(partition.experts().expert(m, e), layout.shard_bytes()).data());
  }
  void expect_resident_right() const {
    for (int m = 0; m < layout.moe_layers; ++m)
      for (int e = 0; e < partition.experts().first_given_up_expert(m); ++e)
        EXPECT_TRUE(expert_right(m, e)) << "expert " << e << " of MoE layer " << m;
  }
  void expect_driver_agrees() {
    for (const auto& [address, mapping] : shadow.table()) {
      const auto driver = device.driver_mapping(address);
      ASSERT_TRUE(driver);
      EXPECT_EQ(driver->handle, mapping.handle);
      EXPECT_TRUE(driver->accessible);
    }
    for (const std::byte* hole : shadow.holes())
      EXPECT_FALSE(device.driver_mapping(const_cast<std::byte*>(hole)));
  }

  CudaVirtualMemory device{0};
  FailingVirtualMemory failing{device};
  ShadowVirtualMemory shadow{failing};
  MemoryLayout layout;
  PatternExperts source{layout};
  PinnedExperts pinned{layout, source};
  HbmPartition partition;
};

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto why = cuda_memory_unavailable(0)) GTEST_SKIP() << *why;
  }
};

}  // namespace vamp::test
