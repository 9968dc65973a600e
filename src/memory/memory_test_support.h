// What the tests of this folder (and of src/exec) share: small layouts and experts of known bytes.
#pragma once

#include <atomic>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "memory/hbm_partition.h"

namespace vamp::test {

struct LayoutShape {
  int moe_layers = 4;
  int experts = 15;  // the last of 8 groups lacks one
  int max_groups_out_per_layer = 4;
  bool first_moe_layer_resident = true;
  int missing_groups = 0;
  size_t page = 4096;
  size_t base_pool_pages = 2;
};

// Groups of two shards and three pages. Blocks of 5/8 pages straddle pages and slots.
inline MemoryLayout small_layout(const LayoutShape& shape = {}) {
  MemoryLayout layout;
  layout.page_bytes = shape.page;
  layout.moe_layers = shape.moe_layers;
  layout.experts = shape.experts;
  layout.gate_up_shard_bytes = shape.page;
  layout.down_shard_bytes = shape.page / 2;
  layout.shards_per_group = 2;
  layout.groups_per_layer = (shape.experts + 1) / 2;
  layout.max_groups_out_per_layer = shape.max_groups_out_per_layer;
  layout.first_moe_layer_resident = shape.first_moe_layer_resident;
  layout.missing_groups = shape.missing_groups;
  layout.block_tokens = 16;
  layout.kv_bytes_per_token = shape.page / 8 * 5 / 16;
  layout.block_bytes = layout.kv_bytes_per_token * 16;
  layout.base_pool_bytes = shape.base_pool_pages * shape.page;
  layout.set_order(
      round_robin_order(layout, shape.max_groups_out_per_layer, shape.first_moe_layer_resident));
  while (layout.pool_slots(layout.min_groups_out) < 0) ++layout.min_groups_out;
  return layout;
}

// Every 8 bytes of every shard tell where they belong.
class PatternExperts : public HostExperts {
 public:
  explicit PatternExperts(const MemoryLayout& layout) : bytes_(layout.shard_bytes()) {}

  void copy(int moe_layer, int first, int count, std::byte* to) const override {
    const int call = ++calls_;
    if (call >= fail_from_ && call < fail_to_)
      throw Error("expert {} unreadable on purpose", first);
    std::vector<uint64_t> words(bytes_ / 8);
    for (int expert = first; expert < first + count; ++expert, to += bytes_) {
      for (size_t i = 0; i < words.size(); ++i) words[i] = word(moe_layer, expert, i);
      std::memcpy(to, words.data(), bytes_);
    }
  }

  static uint64_t word(int moe_layer, int expert, size_t index) {
    return (static_cast<uint64_t>(1 + moe_layer) << 48) | (static_cast<uint64_t>(expert) << 32) |
           index;
  }
  // Whether the expert that is read from this address has the right bytes.
  bool right(int moe_layer, int expert, const std::byte* at) const {
    for (size_t i = 0; i < bytes_ / 8; ++i) {
      uint64_t found;
      std::memcpy(&found, at + 8 * i, 8);
      if (found != word(moe_layer, expert, i)) return false;
    }
    return true;
  }

  // The `call`-th copy from now throws, and so do `count - 1` after it.
  void fail(int call, int count = 1) {
    calls_ = 0;
    fail_from_ = call;
    fail_to_ = call + count;
  }
  int calls() const { return calls_; }

 private:
  size_t bytes_;
  mutable std::atomic<int> calls_ = 0;
  int fail_from_ = 0, fail_to_ = 0;
};

// A target with slots chosen like a scheduler would: the lowest holes join, those that `leave`
// picks (any mapped one: called with their list) leave.
template <typename Choose>
PartitionTarget target_for(const HbmPartition& partition, int groups_out, Choose choose) {
  PartitionTarget target{groups_out, partition.layout().order.version, {}, {}};
  std::vector<PoolSlot> holes, mapped;
  for (PoolSlot slot = 0; slot < partition.kv().slots(); ++slot)
    (partition.kv().frame(slot) ? mapped : holes).push_back(slot);
  const int change = partition.layout().pool_slots(groups_out) - partition.kv().mapped_slots();
  for (int i = 0; i < change; ++i) {
    const size_t pick = choose(holes.size());
    target.map_slots.push_back(holes[pick]);
    holes.erase(holes.begin() + static_cast<std::ptrdiff_t>(pick));
  }
  for (int i = 0; i > change; --i) {
    const size_t pick = choose(mapped.size());
    target.unmap_slots.push_back(mapped[pick]);
    mapped.erase(mapped.begin() + static_cast<std::ptrdiff_t>(pick));
  }
  return target;
}
inline PartitionTarget target_for(const HbmPartition& partition, int groups_out) {
  return target_for(partition, groups_out, [](size_t) { return size_t{0}; });
}

}  // namespace vamp::test
