#include "memory/cuda/cuda_staging.h"

#include "memory/cuda/cuda_test_support.h"

namespace vamp::test {
namespace {

using CudaStagingTest = CudaTest;

// Goes through a step as an executor does; the "MoE" of a layer copies all its experts out, on the
// compute stream, so that what it saw can be looked at afterwards.
void run_step(CudaWorld& world, CudaStaging& staging) {
  const MemoryLayout& layout = world.layout;
  const size_t bytes = layout.experts * layout.shard_bytes();
  CudaStream compute;
  std::vector<PinnedBuffer> seen;
  for (int m = 0; m < layout.moe_layers; ++m) staging.begin_region(m);
  for (int m = 0; m < layout.moe_layers; ++m) {
    seen.emplace_back(bytes);
    staging.wait(m, compute.get());
    check_cuda(cudaMemcpyAsync(seen[m].data(), world.partition.experts().expert(m, 0), bytes,
                               cudaMemcpyDeviceToHost, compute.get()),
               "a test's read");
    staging.release(m, compute.get());
  }
  compute.synchronize("a test's step");
  for (int m = 0; m < layout.moe_layers; ++m)
    for (int e = 0; e < layout.experts; ++e)
      EXPECT_TRUE(world.source.right(m, e, seen[m].data() + e * layout.shard_bytes()))
          << "expert " << e << " of MoE layer " << m;
}

TEST_F(CudaStagingTest, EveryLayerSeesItsOwnExpertsWhole) {
  for (const bool first_resident : {true, false}) {
    CudaWorld world(first_resident ? 20 : 24, first_resident);
    CudaStaging staging(world.partition, world.pinned);
    for (const int n : {20, 13, 20, 5, 0}) {
      world.partition.move(target_for(world.partition, n));
      run_step(world, staging);
      size_t bytes = 0;
      for (int m = 0; m < world.layout.moe_layers; ++m)
        bytes += world.partition.experts().experts_out(m) * world.layout.shard_bytes();
      const CudaStagingCounters counters = staging.end_step();
      EXPECT_EQ(counters.staged_bytes, bytes);
      EXPECT_EQ(counters.copy > 0, bytes > 0);
      EXPECT_GE(counters.stall, 0);
    }
  }
}

TEST_F(CudaStagingTest, MisuseIsFound) {
  CudaWorld world(20);
  CudaStaging staging(world.partition, world.pinned);
  CudaStream compute;
  for (const int m : {1, 2, 3}) staging.begin_region(m);
  EXPECT_THROW(staging.begin_region(1), InvariantError);
  EXPECT_THROW(staging.wait(3, compute.get()), InvariantError);  // its bank is layer 1's yet
  EXPECT_THROW(staging.release(1, compute.get()), InvariantError);
  EXPECT_THROW(staging.end_step(), InvariantError);
  for (const int m : {1, 2, 3}) {
    staging.wait(m, compute.get());
    staging.release(m, compute.get());
  }
  staging.wait(0, compute.get());  // not given up: nothing to do
  staging.release(0, compute.get());
  compute.synchronize("a test's step");
  staging.end_step();
}

}  // namespace
}  // namespace vamp::test
