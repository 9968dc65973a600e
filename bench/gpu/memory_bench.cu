// What the CUDA memory backend costs on this GPU: remapping, staging, gathering, KV blocks to and
// from the host. Shapes are those of Qwen3-Next-80B under TP2: experts of 2 + 1 MiB, groups of two.
//
//   gpu_memory_bench [BLOCKS THREADS ...]   further shapes of the gather kernel
//
// The matrix product beside which experts are gathered comes from cuBLAS, looked up at run time;
// where there is none its figures are null.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/random.h"
#include "gpu/memory_bench_load.cuh"
#include "memory/cuda/block_copier.h"
#include "memory/cuda/cuda_staging.h"
#include "memory/cuda/cuda_virtual_memory.h"
#include "memory/cuda/expert_gather.h"

namespace vamp {
namespace {

constexpr double kLinkGBs = 55.4;  // copy engine, 256-MiB copies, on an H200 behind PCIe 5

class OneShard final : public HostExperts {
 public:
  explicit OneShard(size_t bytes) : bytes_(bytes) {
    Random random(1);
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
      const uint64_t word = random.next();
      std::memcpy(bytes_.data() + i, &word, 8);
    }
  }
  void copy(int, int, int count, std::byte* to) const override {
    for (int i = 0; i < count; ++i, to += bytes_.size())
      std::memcpy(to, bytes_.data(), bytes_.size());
  }

 private:
  std::vector<std::byte> bytes_;
};

// Lets the bytes be left out, to see what the calls alone cost.
class SwitchedExperts final : public HostExperts {
 public:
  explicit SwitchedExperts(const HostExperts& inner) : inner_(inner) {}
  void copy(int m, int first, int count, std::byte* to) const override {
    if (copies) inner_.copy(m, first, count, to);
  }
  bool copies = true;

 private:
  const HostExperts& inner_;
};

MemoryLayout make_layout() {
  MemoryLayout layout;
  layout.page_bytes = 2 * kMiB;
  layout.moe_layers = 12;
  layout.experts = 128;
  layout.gate_up_shard_bytes = 2 * kMiB;
  layout.down_shard_bytes = kMiB;
  layout.shards_per_group = 2;
  layout.groups_per_layer = 64;
  layout.max_groups_out_per_layer = 38;
  layout.block_bytes = 192 * kKiB;
  layout.base_pool_bytes = 64 * kMiB;
  layout.set_order(round_robin_order(layout, layout.max_groups_out_per_layer, true));
  return layout;
}

PartitionTarget target(const HbmPartition& partition, int groups_out) {
  PartitionTarget target{groups_out, 0, {}, {}};
  const int now = partition.kv().mapped_slots(), then = partition.layout().pool_slots(groups_out);
  for (int slot = now; slot < then; ++slot) target.map_slots.push_back(slot);
  for (int slot = then; slot < now; ++slot) target.unmap_slots.push_back(slot);
  return target;
}

struct RemapFigures {
  double ms_per_gib = 0;    // of pool gained or lost
  double increment_us = 0;  // median of increments of four groups that change the pool by four
  double worst_increment_us = 0;
};

RemapFigures sweep(HbmPartition& partition, bool up) {
  const RealClock clock;
  const int end = partition.layout().max_groups_out() / 4 * 4;
  std::vector<double> increments;
  double total = 0;
  const int slots_before = partition.kv().mapped_slots();
  for (int i = 4; i <= end; i += 4) {
    const auto next = target(partition, up ? i : end - i);
    const Micros start = clock.now();
    partition.move(next);
    const Micros took = clock.now() - start;
    total += took;
    if (next.map_slots.size() + next.unmap_slots.size() == 4) increments.push_back(took);
  }
  const double gib = std::abs(partition.kv().mapped_slots() - slots_before) *
                     static_cast<double>(partition.layout().group_bytes()) / kGiB;
  return {total / 1e3 / gib, median(increments),
          *std::max_element(increments.begin(), increments.end())};
}

double staging_rate(HbmPartition& partition, const PinnedExperts& pinned) {
  CudaStaging staging(partition, pinned);
  CudaStream compute;
  std::vector<double> rates;
  for (int step = 0; step < 6; ++step) {
    CudaEvent begin(CudaEvent::Kind::kTiming), end(CudaEvent::Kind::kTiming);
    begin.record(compute.get());
    for (int m = 0; m < partition.layout().moe_layers; ++m) staging.begin_region(m);
    for (int m = 0; m < partition.layout().moe_layers; ++m) {
      staging.wait(m, compute.get());
      staging.release(m, compute.get());
    }
    end.record(compute.get());
    compute.synchronize("staging");
    rates.push_back(
        gb_per_s(staging.end_step().staged_bytes, begin.micros_to(end)));  // gaps included
  }
  return median(rates);
}

// A graph of the chosen experts of all layers in turn, so that L2 holds nothing.
class GatherLoad {
 public:
  GatherLoad(HbmPartition& partition, const PinnedExperts& pinned, double share,
             LinkCopyShape shape)
      : gather_(partition, pinned, shape), expert_start_(partition.layout().experts + 1) {
    const MemoryLayout& layout = partition.layout();
    Random random(3);
    std::vector<int32_t> start(layout.experts + 1, 0);
    for (int e = 0; e < layout.experts; ++e) start[e + 1] = start[e] + (random.uniform() < share);
    for (int m = 1; m < layout.moe_layers; ++m)
      for (int e = partition.experts().first_given_up_expert(m); e < layout.experts; ++e)
        bytes_ += static_cast<double>(start[e + 1] - start[e]) * layout.shard_bytes();
    check_cuda(
        cudaMemcpy(expert_start_.get(), start.data(), start.size() * 4, cudaMemcpyHostToDevice),
        "choices");
    gather_.update(nullptr);
    check_cuda(cudaDeviceSynchronize(), "choices");
    CudaStream stream;
    cudaGraph_t graph = nullptr;
    check_cuda(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal), "capture");
    for (int m = 1; m < layout.moe_layers; ++m)
      gather_.gather(m, expert_start_.get(), stream.get());
    check_cuda(cudaStreamEndCapture(stream.get(), &graph), "capture");
    check_cuda(cudaGraphInstantiate(&exec_, graph, 0), "instantiating a graph");
    cudaGraphDestroy(graph);
  }
  ~GatherLoad() { cudaGraphExecDestroy(exec_); }
  void launch(cudaStream_t stream) {
    check_cuda(cudaGraphLaunch(exec_, stream), "launching a graph");
  }
  double bytes() const { return bytes_; }

 private:
  ExpertGather gather_;
  DeviceArray<int32_t> expert_start_;
  double bytes_ = 0;
  cudaGraphExec_t exec_ = nullptr;
};

struct KvRates {
  double to_host = 0, to_device = 0;                // as BlockCopier does it
  double engine_to_host = 0, engine_to_device = 0;  // one copy-engine copy a block
};
KvRates kv_rates(std::byte* device, const PinnedBuffer& host, size_t total, size_t block_bytes) {
  const auto count = static_cast<int>(total / block_bytes);
  std::vector<int> order(count);
  for (int i = 0; i < count; ++i) order[i] = i;
  Random random(4);
  for (int i = count - 1; i > 0; --i) std::swap(order[i], order[random.below(i + 1)]);
  std::vector<BlockCopyAddress> blocks;
  for (int i = 0; i < count; ++i)
    blocks.push_back({device + order[i] * block_bytes, host.data() + i * block_bytes});
  const BlockCopier copier(block_bytes);
  CudaStream stream;
  const double bytes = static_cast<double>(count) * block_bytes;
  const auto rate = [&](const std::function<void()>& work) {
    return gb_per_s(bytes, time_us(stream.get(), 5, work));
  };
  const auto engine = [&](cudaMemcpyKind kind) {
    for (const BlockCopyAddress& b : blocks) {
      const bool out = kind == cudaMemcpyDeviceToHost;
      check_cuda(cudaMemcpyAsync(out ? b.host : b.device, out ? b.device : b.host, block_bytes,
                                 kind, stream.get()),
                 "KV");
    }
  };
  return {rate([&] { copier.to_host(blocks, stream.get()); }),
          rate([&] { copier.to_device(blocks, stream.get()); }),
          rate([&] { engine(cudaMemcpyDeviceToHost); }),
          rate([&] { engine(cudaMemcpyHostToDevice); })};
}

void run(const std::vector<LinkCopyShape>& shapes) {
  CudaVirtualMemory memory(0);
  const MemoryLayout layout = make_layout();
  const OneShard source(layout.shard_bytes());
  const PinnedExperts pinned(layout, source);
  SwitchedExperts experts(pinned);
  HbmPartition partition(layout, 0, memory, experts);
  HbmReader reader;

  fmt::print("{{\"page_bytes\":{},\"group_bytes\":{},\"link_gb_per_s\":{}", memory.granularity(),
             layout.group_bytes(), kLinkGBs);
  const auto print_remap = [](const char* name, const RemapFigures& f) {
    fmt::print(
        ",\"{}\":{{\"ms_per_gib\":{:.2f},\"increment_us\":{:.0f},\"worst_increment_us\":{:.0f}}}",
        name, f.ms_per_gib, f.increment_us, f.worst_increment_us);
  };
  sweep(partition, true);
  sweep(partition, false);
  print_remap("give_up_idle", sweep(partition, true));
  experts.copies = false;
  print_remap("restore_calls_idle", sweep(partition, false));
  for (const int passes : {1, 20}) {
    BusyDevice busy(reader, passes);
    const std::string with = passes == 1 ? "_busy_short_kernels" : "_busy_long_kernels";
    print_remap(("give_up" + with).c_str(), sweep(partition, true));
    print_remap(("restore_calls" + with).c_str(), sweep(partition, false));
  }
  experts.copies = true;
  sweep(partition, true);
  print_remap("restore_idle", sweep(partition, false));
  partition.move(target(partition, layout.max_groups_out()));

  const double staging = staging_rate(partition, pinned);
  fmt::print(",\"whole_region_gb_per_s\":{:.2f},\"whole_region_of_link\":{:.3f}", staging,
             staging / kLinkGBs);

  Gemm gemm;
  const auto print_besides = [&](const Work& copies, double bytes) {
    const auto print = [](const char* name, const Beside& b, double alone, const char* unit) {
      fmt::print(
          ",\"{}\":{{\"alone_us\":{:.1f},\"alone_{}\":{:.1f},\"slower_percent\":{:.1f},"
          "\"copy_gb_per_s\":{:.2f}}}",
          name, b.alone_us, unit, alone, b.slower_percent, b.copy_gb_per_s);
    };
    for (const auto grid : {HbmReader::Grid::kShortBlocks, HbmReader::Grid::kPersistent}) {
      const Beside hbm = beside(copies, bytes, [&](cudaStream_t s) { reader.launch(s, grid); });
      print(grid == HbmReader::Grid::kPersistent ? "hbm_read_persistent_beside" : "hbm_read_beside",
            hbm, gb_per_s(reader.bytes(), hbm.alone_us), "gb_per_s");
    }
    if (!gemm.works()) {
      fmt::print(",\"gemm_beside\":null");
      return;
    }
    const Beside product = beside(copies, bytes, [&](cudaStream_t s) { gemm.launch(s); });
    print("gemm_beside", product, 2.0 * std::pow(Gemm::kSize, 3) / product.alone_us * 1e-6,
          "tflops");
  };
  const size_t tail =
      static_cast<size_t>(partition.experts().experts_out(1)) * layout.shard_bytes();
  fmt::print(",\"copy_engine\":{{\"bytes\":{}", tail);
  const int first = partition.experts().first_given_up_expert(1);
  std::byte* to = partition.experts().expert(1, first);
  const std::byte* from = pinned.expert(1, first);
  print_besides(
      [&](cudaStream_t s) {
        check_cuda(cudaMemcpyAsync(to, from, tail, cudaMemcpyHostToDevice, s), "copying experts");
      },
      static_cast<double>(tail));
  fmt::print("}}");
  CudaStream stream;

  // Shapes of the gather kernel, the default first.
  fmt::print(",\"gather\":[");
  const char* comma = "";
  for (const LinkCopyShape& shape : shapes) {
    GatherLoad all(partition, pinned, 1.0, shape), some(partition, pinned, 0.3, shape);
    const auto rate = [&](GatherLoad& load) {
      return gb_per_s(load.bytes(), time_us(stream.get(), 5, [&] { load.launch(stream.get()); }));
    };
    const double all_rate = rate(all), some_rate = rate(some);
    fmt::print(
        "{}{{\"blocks\":{},\"threads\":{},\"all_gb_per_s\":{:.2f},"
        "\"third_gb_per_s\":{:.2f},\"all_of_link\":{:.3f}",
        comma, shape.blocks, shape.threads, all_rate, some_rate, all_rate / kLinkGBs);
    comma = ",";
    print_besides([&](cudaStream_t s) { all.launch(s); }, all.bytes());
    fmt::print("}}");
  }
  fmt::print("]");

  // The KV arena: what is mapped of it in a row is the device's side.
  const size_t total = 768 * kMiB;
  VAMP_CHECK(partition.kv().mapped_slots() * layout.group_bytes() >= total);
  const PinnedBuffer host(total);
  fmt::print(",\"kv\":[");
  comma = "";
  for (const size_t block :
       {48 * kKiB, 192 * kKiB, 384 * kKiB, 768 * kKiB, 1536 * kKiB, 3 * kMiB, 6 * kMiB}) {
    const KvRates rates = kv_rates(partition.kv().base(), host, total, block);
    fmt::print(
        "{}{{\"block_kib\":{},\"to_host\":{:.2f},\"to_device\":{:.2f},\"engine_to_host\":{:.2f},"
        "\"engine_to_device\":{:.2f}}}",
        comma, block / kKiB, rates.to_host, rates.to_device, rates.engine_to_host,
        rates.engine_to_device);
    comma = ",";
  }
  fmt::print("]}}\n");
}

}  // namespace
}  // namespace vamp

int main(int argc, char** argv) {
  try {
    std::vector<vamp::LinkCopyShape> shapes = {{}};
    for (int i = 1; i + 1 < argc; i += 2)
      shapes.push_back({std::atoi(argv[i]), std::atoi(argv[i + 1])});
    vamp::run(shapes);
  } catch (const std::exception& error) {
    fmt::print(stderr, "gpu_memory_bench: {}\n", error.what());
    return 2;
  }
}
