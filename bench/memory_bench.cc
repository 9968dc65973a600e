// What moving the boundary costs on the host backend: microseconds a group, driver calls and bytes
// apart, and the rate of staging.
//
//   memory_bench [KiB of an expert's down matrix, default 256] [layers] [experts]
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/clock.h"
#include "memory/hbm_partition.h"
#include "memory/host_virtual_memory.h"
#include "memory/staging.h"
#include "memory/virtual_memory_decorators.h"

namespace vamp {
namespace {

// One piece of ordinary memory stands for every expert: only the rate counts.
class OneShard final : public HostExperts {
 public:
  explicit OneShard(const MemoryLayout& layout) : bytes_(layout.shard_bytes()) {}
  void copy(int, int, int count, std::byte* to) const override {
    for (int i = 0; copies && i < count; ++i, to += bytes_.size())
      std::memcpy(to, bytes_.data(), bytes_.size());
  }
  bool copies = true;

 private:
  std::vector<std::byte> bytes_;
};

MemoryLayout make_layout(size_t down_bytes, int layers, int experts) {
  MemoryLayout layout;
  layout.page_bytes = 4096;
  layout.moe_layers = layers;
  layout.experts = experts;
  layout.gate_up_shard_bytes = 2 * down_bytes;
  layout.down_shard_bytes = down_bytes;
  layout.shards_per_group = 1;
  layout.groups_per_layer = experts;
  layout.max_groups_out_per_layer = experts / 4;
  layout.block_bytes = 16 * kKiB;
  layout.base_pool_bytes = kMiB;
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

// Up to the far end and back in increments of four groups; microseconds a group each way.
std::pair<double, double> sweep(HbmPartition& partition, int rounds) {
  const RealClock clock;
  const int end = partition.layout().max_groups_out();
  double up = 0, down = 0;
  for (int round = 0; round < rounds; ++round) {
    Micros start = clock.now();
    for (int n = 4; n <= end; n += 4) partition.move(target(partition, n));
    up += clock.now() - start;
    start = clock.now();
    for (int n = partition.groups_out() - 4; n >= 0; n -= 4) partition.move(target(partition, n));
    down += clock.now() - start;
  }
  const double groups = static_cast<double>(end / 4 * 4) * rounds;
  return {up / groups, down / groups};
}

double staging_rate(HbmPartition& partition, const HostExperts& source) {
  const RealClock clock;
  Staging staging(partition, source, clock);
  StagingCounters sum;
  for (int step = 0; step < 10; ++step) {
    for (int m = 0; m < partition.layout().moe_layers; ++m) staging.begin_region(m);
    for (int m = 0; m < partition.layout().moe_layers; ++m) {
      staging.wait(m);
      staging.release(m);
    }
    const StagingCounters counters = staging.end_step();
    sum.staged_bytes += counters.staged_bytes;
    sum.copy += counters.copy;
  }
  return static_cast<double>(sum.staged_bytes) / sum.copy * 1e-3;  // bytes/us → GB/s
}

void run(size_t down_bytes, int layers, int experts) {
  const MemoryLayout layout = make_layout(down_bytes, layers, experts);
  OneShard source(layout);
  HostVirtualMemory host;
  ShadowVirtualMemory memory(host);
  HbmPartition partition(layout, 0, memory, source);
  sweep(partition, 1);  // touches every page once
  const auto [up, down] = sweep(partition, 4);
  partition.move(target(partition, layout.max_groups_out()));
  const double rate = staging_rate(partition, source);
  partition.move(target(partition, 0));
  // The same without touching bytes, as near as the host gets to the calls alone: tiny groups.
  const MemoryLayout tiny = make_layout(4096, layers, experts);
  OneShard nothing(tiny);
  nothing.copies = false;
  HostVirtualMemory tiny_host;
  HbmPartition tiny_partition(tiny, 0, tiny_host, nothing);
  const auto [calls_up, calls_down] = sweep(tiny_partition, 4);
  fmt::print(
      "{{\"group_bytes\":{},\"groups\":{},\"give_up_us_per_group\":{:.2f},"
      "\"restore_us_per_group\":{:.2f},\"give_up_calls_us_per_group\":{:.2f},"
      "\"restore_calls_us_per_group\":{:.2f},\"staging_gb_per_s\":{:.2f}}}\n",
      layout.group_bytes(), layout.max_groups_out(), up, down, calls_up, calls_down, rate);
}

}  // namespace
}  // namespace vamp

int main(int argc, char** argv) {
  const auto argument = [&](int i, int otherwise) {
    return argc > i ? std::atoi(argv[i]) : otherwise;
  };
  vamp::run(static_cast<size_t>(argument(1, 256)) * vamp::kKiB, argument(2, 8), argument(3, 16));
}
