// The boundary moves thousands of times under one captured graph that is never captured again;
// every output of every replay is compared.
#include "base/random.h"
#include "memory/cuda/cuda_staging.h"
#include "memory/cuda/cuda_test_support.h"
#include "memory/cuda/expert_gather.h"

namespace vamp::test {
namespace {

constexpr int kThreads = 512;

__host__ __device__ bool is_chosen(uint64_t seed, int layer, int expert, int layers, int experts) {
  uint64_t z =
      seed * 0x9E3779B97F4A7C15ull + static_cast<uint64_t>(layer * experts + expert + layers);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return (z >> 33) % 3 == 0;
}

// Stands for the router.
__global__ void choose_kernel(const uint64_t* seed, int layer, int layers, int experts,
                              int32_t* expert_start) {
  expert_start[0] = 0;
  for (int e = 0; e < experts; ++e)
    expert_start[e + 1] = expert_start[e] + (is_chosen(*seed, layer, e, layers, experts) ? 1 : 0);
}

// Stands for a grouped GEMM: block e adds up what it sees of expert e, if it was chosen.
__global__ void sum_kernel(const uint64_t* weights, size_t words, const int32_t* expert_start,
                           unsigned long long* sums) {
  if (expert_start && expert_start[blockIdx.x] == expert_start[blockIdx.x + 1]) return;
  const uint64_t* expert = weights + blockIdx.x * words;
  unsigned long long sum = 0;
  for (size_t i = threadIdx.x; i < words; i += blockDim.x) sum += expert[i] * (2 * i + 1);
  atomicAdd(&sums[blockIdx.x], sum);
}

// Stands for attention: block s counts words of pool slot s that are not as stamped. Stamp 0: a
// hole.
__global__ void check_slots_kernel(const uint64_t* first_slot, size_t words, const uint64_t* stamps,
                                   unsigned long long* wrong) {
  const uint64_t stamp = stamps[blockIdx.x];
  if (stamp == 0) return;
  const uint64_t* slot = first_slot + blockIdx.x * words;
  unsigned long long count = 0;
  for (size_t i = threadIdx.x; i < words; i += blockDim.x) count += slot[i] != stamp;
  if (count > 0) atomicAdd(wrong, count);
}

// Counts what is not zero in a slot that has just joined, then stamps it.
__global__ void stamp_kernel(uint64_t* slot, size_t words, uint64_t stamp,
                             unsigned long long* wrong) {
  unsigned long long count = 0;
  for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < words; i += gridDim.x * blockDim.x) {
    count += slot[i] != 0;
    slot[i] = stamp;
  }
  if (count > 0) atomicAdd(wrong, count);
}

class BoundaryStress : public CudaTest, public testing::WithParamInterface<LinkCopyShape> {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (IsSkipped()) return;
    world_.emplace();
    const MemoryLayout& layout = world_->layout;
    sums_.emplace(layout.moe_layers * layout.experts + 1);  // and one count of wrong KV words
    expert_start_.emplace(layout.moe_layers * (layout.experts + 1));
    seed_.emplace(1);
    stamps_host_.resize(world_->partition.kv().slots());
    stamps_.emplace(stamps_host_.size());
    for (int m = 0; m < layout.moe_layers; ++m)
      for (int e = 0; e < layout.experts; ++e) expected_.push_back(expected_sum(m, e));
  }

  uint64_t expected_sum(int m, int e) const {
    uint64_t sum = 0;
    for (size_t i = 0; i < world_->layout.shard_bytes() / 8; ++i)
      sum += PatternExperts::word(m, e, i) * (2 * i + 1);
    return sum;
  }
  unsigned long long* wrong() { return sums_->get() + sums_->size() - 1; }

  void sum(int m, const int32_t* expert_start, cudaStream_t stream) {
    const MemoryLayout& layout = world_->layout;
    sum_kernel<<<layout.experts, kThreads, 0, stream>>>(
        reinterpret_cast<const uint64_t*>(world_->partition.experts().expert(m, 0)),
        layout.shard_bytes() / 8, expert_start, sums_->get() + m * layout.experts);
  }
  void clear_and_check_slots(cudaStream_t stream) {
    check_cuda(cudaMemsetAsync(sums_->get(), 0, sums_->size() * 8, stream), "clearing the sums");
    check_slots_kernel<<<static_cast<unsigned>(stamps_->size()), kThreads, 0, stream>>>(
        reinterpret_cast<const uint64_t*>(world_->partition.kv().slot(0)),
        world_->layout.group_bytes() / 8, stamps_->get(), wrong());
  }

  // A step whose given-up experts are gathered on a forked stream.
  cudaGraphExec_t capture(ExpertGather& gather, cudaStream_t stream) {
    const MemoryLayout& layout = world_->layout;
    CudaStream side;
    CudaEvent routed, gathered;
    check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    clear_and_check_slots(stream);
    for (int m = 0; m < layout.moe_layers; ++m) {
      int32_t* expert_start = expert_start_->get() + m * (layout.experts + 1);
      choose_kernel<<<1, 1, 0, stream>>>(seed_->get(), m, layout.moe_layers, layout.experts,
                                         expert_start);
      routed.record(stream);
      routed.order(side.get());
      gather.gather(m, expert_start, side.get());
      gathered.record(side.get());
      gathered.order(stream);
      sum(m, expert_start, stream);
    }
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    check_cuda(cudaStreamEndCapture(stream, &graph), "capture");
    check_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiating a graph");
    check_cuda(cudaGraphDestroy(graph), "dropping a graph");
    return exec;
  }

  // Moves, sometimes with a driver call that fails; stamps what joined the pool.
  void move(Random& random, cudaStream_t stream) {
    HbmPartition& partition = world_->partition;
    const int n = static_cast<int>(random.below(world_->layout.max_groups_out() + 1));
    const auto target = target_for(partition, n, [&](size_t count) { return random.below(count); });
    const bool fails = random.chance(0.1);
    if (fails) world_->failing.arm(static_cast<int>(random.between(1, 20)));
    std::vector<PoolSlot> fresh = target.map_slots;
    try {
      partition.move(target);
      for (const PoolSlot slot : target.unmap_slots) stamps_host_[slot] = 0;
    } catch (const Error&) {
      ASSERT_TRUE(fails && !partition.broken());
      ++failures_;
      // Slots whose blocks were given up: bytes undefined, as after any eviction.
      for (const PoolSlot slot : target.unmap_slots)
        world_->device.zero(partition.kv().slot(slot), world_->layout.group_bytes());
      fresh = target.unmap_slots;
    }
    world_->failing.disarm();
    check_cuda(cudaMemsetAsync(wrong(), 0, 8, stream), "clearing a count");
    for (const PoolSlot slot : fresh) {
      stamps_host_[slot] = ++stamp_;
      stamp_kernel<<<32, kThreads, 0, stream>>>(
          reinterpret_cast<uint64_t*>(partition.kv().slot(slot)), world_->layout.group_bytes() / 8,
          stamp_, wrong());
    }
    check_cuda(cudaMemcpyAsync(stamps_->get(), stamps_host_.data(), stamps_host_.size() * 8,
                               cudaMemcpyHostToDevice, stream),
               "writing the stamps");
    ASSERT_EQ(read_wrong(stream), 0u) << "a slot joined the pool with old bytes";
  }
  uint64_t read_wrong(cudaStream_t stream) {
    uint64_t count = 0;
    check_cuda(cudaMemcpyAsync(&count, wrong(), 8, cudaMemcpyDeviceToHost, stream),
               "reading a count");
    check_cuda(cudaStreamSynchronize(stream), "reading a count");
    return count;
  }

  // After a step has run: every sum as it must be.
  template <typename Chosen>
  void expect_outputs(Chosen chosen) {
    const MemoryLayout& layout = world_->layout;
    std::vector<unsigned long long> sums(sums_->size());
    check_cuda(cudaMemcpy(sums.data(), sums_->get(), sums.size() * 8, cudaMemcpyDeviceToHost),
               "reading");
    EXPECT_EQ(sums.back(), 0u) << "words of the KV pool";
    for (int m = 0; m < layout.moe_layers; ++m)
      for (int e = 0; e < layout.experts; ++e) {
        const size_t i = m * layout.experts + e;
        ASSERT_EQ(sums[i], chosen(m, e) ? expected_[i] : 0)
            << "expert " << e << " of MoE layer " << m;
      }
  }

  std::optional<CudaWorld> world_;
  std::optional<DeviceArray<unsigned long long>> sums_;
  std::optional<DeviceArray<int32_t>> expert_start_;
  std::optional<DeviceArray<uint64_t>> seed_, stamps_;
  std::vector<uint64_t> stamps_host_;
  std::vector<uint64_t> expected_;
  uint64_t stamp_ = 0;
  int failures_ = 0;
};

TEST_P(BoundaryStress, GraphsStayRightWhereverTheBoundaryIs) {
  const MemoryLayout& layout = world_->layout;
  CudaStream stream;
  ExpertGather gather(world_->partition, world_->pinned, GetParam());
  cudaGraphExec_t graph = capture(gather, stream.get());
  Random random(2609);
  for (uint64_t round = 1; round <= 2000 && !HasFatalFailure(); ++round) {
    move(random, stream.get());
    gather.update(stream.get());
    size_t staged = 0;
    for (uint64_t replay = 0; replay < 2; ++replay) {
      const uint64_t seed = 2 * round + replay;
      check_cuda(cudaMemcpyAsync(seed_->get(), &seed, 8, cudaMemcpyHostToDevice, stream.get()),
                 "seed");
      check_cuda(cudaGraphLaunch(graph, stream.get()), "launching the graph");
      stream.synchronize("the graph");
      expect_outputs(
          [&](int m, int e) { return is_chosen(seed, m, e, layout.moe_layers, layout.experts); });
      for (int m = 0; m < layout.moe_layers; ++m)
        for (int e = world_->partition.experts().first_given_up_expert(m); e < layout.experts; ++e)
          staged += is_chosen(seed, m, e, layout.moe_layers, layout.experts);
    }
    ASSERT_EQ(gather.take_staged_bytes(stream.get()), staged * layout.shard_bytes());
  }
  EXPECT_GT(failures_, 30);
  world_->partition.check_invariants();
  world_->expect_driver_agrees();
  check_cuda(cudaGraphExecDestroy(graph), "dropping a graph");
}

TEST_P(BoundaryStress, EagerWholeRegionStepsTakeTurnsWithGraphs) {
  const MemoryLayout& layout = world_->layout;
  CudaStream stream;
  ExpertGather gather(world_->partition, world_->pinned, GetParam());
  CudaStaging staging(world_->partition, world_->pinned);
  cudaGraphExec_t graph = capture(gather, stream.get());
  Random random(7);
  for (uint64_t round = 1; round <= 300 && !HasFatalFailure(); ++round) {
    move(random, stream.get());
    gather.update(stream.get());
    clear_and_check_slots(stream.get());
    for (int m = 0; m < layout.moe_layers; ++m) staging.begin_region(m);
    for (int m = 0; m < layout.moe_layers; ++m) {
      staging.wait(m, stream.get());
      sum(m, nullptr, stream.get());
      staging.release(m, stream.get());
    }
    stream.synchronize("an eager step");
    staging.end_step();
    expect_outputs([](int, int) { return true; });
    const uint64_t seed = round;
    check_cuda(cudaMemcpyAsync(seed_->get(), &seed, 8, cudaMemcpyHostToDevice, stream.get()),
               "seed");
    check_cuda(cudaGraphLaunch(graph, stream.get()), "launching the graph");
    stream.synchronize("the graph");
    expect_outputs(
        [&](int m, int e) { return is_chosen(seed, m, e, layout.moe_layers, layout.experts); });
  }
  check_cuda(cudaGraphExecDestroy(graph), "dropping a graph");
}

// The default, and one that divides nothing evenly.
INSTANTIATE_TEST_SUITE_P(GatherShapes, BoundaryStress,
                         testing::Values(LinkCopyShape{}, LinkCopyShape{3, 96}),
                         [](const auto& info) {
                           return fmt::format("{}Blocks", info.param.blocks);
                         });

}  // namespace
}  // namespace vamp::test
