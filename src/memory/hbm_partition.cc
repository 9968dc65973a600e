#include "memory/hbm_partition.h"

#include <algorithm>

#include "base/error.h"

namespace vamp {

HbmPartition::HbmPartition(const MemoryLayout& layout, int groups_out, VirtualMemory& memory,
                           const HostExperts& experts)
    : layout_(layout),
      memory_(memory),
      source_(experts),
      experts_(layout_, memory),
      banks_(layout_),
      kv_(layout_, memory) {
  VAMP_CHECK(groups_out >= layout_.min_groups_out && groups_out <= layout_.max_groups_out(),
             "boundary {} is not within {} ... {}", groups_out, layout_.min_groups_out,
             layout_.max_groups_out());
  for (const size_t bytes : {layout_.group_bytes(), layout_.base_pool_bytes})
    VAMP_CHECK(bytes % memory.granularity() == 0, "{} bytes is no multiple of the page of {}",
               bytes, memory.granularity());
  check_order(layout_.order);
  start(groups_out);
}

HbmPartition::~HbmPartition() {
  unmap_all();
}

void HbmPartition::start(int groups_out) {
  groups_out_ = groups_out;
  const auto make = [this](int groups) {
    return Extent(memory_, ledger_, static_cast<size_t>(groups) * layout_.group_bytes());
  };
  for (int k = 0; k < groups_out; ++k) experts_.offload(layout_.order.groups[k]);
  // Handles in the order of their addresses: on the host neighbours become one kernel mapping.
  for (int m = 0; m < layout_.moe_layers; ++m) {
    const int head = experts_.head_groups(m);
    if (head > 0) experts_.set_head(m, make(head));
    for (int g = head; g < layout_.groups_per_layer - experts_.groups_out(m); ++g)
      experts_.set_frame({m, g}, make(1));
  }
  for (int k = 0; k < groups_out; ++k) {
    const GroupId id = layout_.order.groups[k];
    if (banks_.users(id) == 0)
      banks_.put(id, make(1));
    else
      banks_.join(id);
  }
  if (layout_.base_pool_bytes > 0)
    kv_.set_base_pool(Extent(memory_, ledger_, layout_.base_pool_bytes));
  for (PoolSlot slot = 0; slot < layout_.pool_slots(groups_out); ++slot) kv_.put(slot, make(1));

  Remap mappings = start_mappings();
  mappings.run(memory_);
  try {
    const size_t kv_bytes = layout_.base_pool_bytes + kv_.mapped_slots() * layout_.group_bytes();
    if (kv_bytes > 0) memory_.zero(kv_.base(), kv_bytes);
    for (int m = 0; m < layout_.moe_layers; ++m)
      load(m, 0, layout_.groups_per_layer - experts_.groups_out(m));
  } catch (...) {
    mappings.take_back(memory_);
    throw;
  }
  check_sums();
}

Remap HbmPartition::start_mappings() const {
  Remap remap;
  const auto map = [&remap](std::byte* address, const Extent& extent) {
    remap.map(address, extent.bytes(), extent.handle());
  };
  for (int m = 0; m < layout_.moe_layers; ++m) {
    const int head = experts_.head_groups(m);
    if (head > 0) map(experts_.expert(m, 0), experts_.head(m));
    for (int g = head; g < layout_.groups_per_layer; ++g) {
      const GroupId id{m, g};
      map(experts_.group(id), experts_.frame(id) ? experts_.frame(id) : banks_.frame(id));
    }
  }
  if (kv_.base_pool()) map(kv_.base(), kv_.base_pool());
  for (PoolSlot slot = 0; slot < kv_.mapped_slots(); ++slot) map(kv_.slot(slot), kv_.frame(slot));
  return remap;
}

void HbmPartition::load(int moe_layer, int first_group, int groups) const {
  const int first = first_group * layout_.shards_per_group;
  const int count = std::min(groups * layout_.shards_per_group, layout_.experts - first);
  if (count > 0) source_.copy(moe_layer, first, count, experts_.expert(moe_layer, first));
}

void HbmPartition::set_order(OffloadOrder order) {
  VAMP_CHECK(!broken_, "the partition is broken: {}", *broken_);
  check_order(order);
  MemoryLayout next = layout_;
  next.set_order(std::move(order));
  VAMP_CHECK(groups_out_ <= next.max_groups_out(), "the order ends before the boundary {}",
             groups_out_);
  VAMP_CHECK(next.max_pool_slots() <= kv_.slots(),
             "the order needs more pool slots than there are");
  for (int m = 0; m < layout_.moe_layers; ++m)
    VAMP_CHECK(next.groups_out(groups_out_, m) == experts_.groups_out(m),
               "order {} would move groups of MoE layer {}", next.order.version, m);
  layout_ = std::move(next);
}

PartitionPlan HbmPartition::plan(const PartitionTarget& target) const {
  PartitionPlan plan(layout_, experts_, banks_, kv_);
  for (const PoolSlot slot : target.unmap_slots) plan.unmap(slot);
  for (int k = groups_out_; k < target.groups_out; ++k) plan.offload(layout_.order.groups[k]);
  for (int k = groups_out_ - 1; k >= target.groups_out; --k) plan.restore(layout_.order.groups[k]);
  for (const PoolSlot slot : target.map_slots) plan.map(slot);
  VAMP_CHECK(plan.free_frames() == 0, "a move leaves {} frames over", plan.free_frames());
  return plan;
}

void HbmPartition::carry_out(PartitionPlan& plan) {
  plan.remap().run(memory_);
  using Kind = Transfer::Kind;
  const auto zero_slots = [&](Kind kind) {
    std::vector<MemoryRange> ranges;
    for (const Transfer& t : plan.transfers())
      if (t.kind == kind) ranges.push_back({kv_.slot(t.slot), layout_.group_bytes()});
    if (!ranges.empty()) memory_.zero_ranges(ranges);
  };
  const auto load_groups = [&](Kind kind) {
    for (const Transfer& t : plan.transfers())
      if (t.kind == kind) load(t.group.moe_layer, t.group.group, 1);
  };
  try {
    zero_slots(Kind::kFreeToSlot);
    load_groups(Kind::kFreeToGroup);
    load_groups(Kind::kBankToGroup);
  } catch (const Error& error) {
    plan.remap().take_back(memory_);
    // Bytes that may have been overwritten: of groups that stay after all, and of slots that stay
    // in the KV pool (their blocks were given up by the scheduler, so zeros are as good as new).
    try {
      load_groups(Kind::kGroupToFree);
      zero_slots(Kind::kSlotToFree);
    } catch (const Error& second) {
      throw RollbackError(
          "the bytes of a failed move could not be brought back: {}; before that: {}",
          second.what(), error.what());
    }
    throw;
  }
}

void HbmPartition::commit(const PartitionPlan& plan) {
  const auto pop_free = [this] {
    Extent frame = std::move(free_.back());
    free_.pop_back();
    return frame;
  };
  const auto push_free = [this](Extent frame) {
    frame.hand_to(Holder::kFree);
    free_.push_back(std::move(frame));
  };
  for (const Transfer& t : plan.transfers()) {
    switch (t.kind) {
      case Transfer::Kind::kGroupToBank:
        banks_.put(t.group, experts_.offload(t.group));
        break;
      case Transfer::Kind::kGroupToFree:
        push_free(experts_.offload(t.group));
        banks_.join(t.group);
        break;
      case Transfer::Kind::kBankToGroup:
        experts_.restore(t.group, banks_.take(t.group));
        break;
      case Transfer::Kind::kFreeToGroup:
        banks_.leave(t.group);
        experts_.restore(t.group, pop_free());
        break;
      case Transfer::Kind::kSlotToFree:
        push_free(kv_.take(t.slot));
        break;
      case Transfer::Kind::kFreeToSlot:
        kv_.put(t.slot, pop_free());
        break;
    }
  }
}

void HbmPartition::move(const PartitionTarget& target) {
  VAMP_CHECK(!broken_, "the partition is broken: {}", *broken_);
  check_target(target);
  PartitionPlan moving = plan(target);
  try {
    carry_out(moving);
    commit(moving);
    groups_out_ = target.groups_out;
    check_sums();
  } catch (const RollbackError& error) {
    broken_ = fmt::format("moving the boundary from {} to {} failed halfway: {}", groups_out_,
                          target.groups_out, error.what());
    throw Error("{}; this engine must be restarted", *broken_);
  } catch (const Error& error) {
    throw Error("the boundary stays at {} (wanted: {}): {}", groups_out_, target.groups_out,
                error.what());
  } catch (const std::exception& error) {
    broken_ = error.what();
    throw;
  }
}

void HbmPartition::unmap_all() noexcept {
  const auto unmap = [this](std::byte* address, size_t bytes) {
    try {
      memory_.unmap(address, bytes);
    } catch (const std::exception&) {
      // After a broken move some of it is not mapped; the process is about to end.
    }
  };
  const auto groups = static_cast<size_t>(layout_.groups_per_layer);
  for (int m = 0; m < layout_.moe_layers; ++m)
    unmap(experts_.expert(m, 0), groups * layout_.group_bytes());
  if (kv_.base_pool()) unmap(kv_.base(), layout_.base_pool_bytes);
  for (PoolSlot slot = 0; slot < kv_.slots(); ++slot)
    if (kv_.frame(slot)) unmap(kv_.slot(slot), layout_.group_bytes());
}

}  // namespace vamp
