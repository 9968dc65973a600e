#include "memory/hbm_partition.h"

#include <algorithm>
#include <set>

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
  for (const size_t bytes :
       {layout_.gate_up_group_bytes(), layout_.down_group_bytes(), layout_.base_pool_bytes})
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
  const auto make_frame = [this] {
    return Frame{Extent(memory_, ledger_, layout_.gate_up_group_bytes()),
                 Extent(memory_, ledger_, layout_.down_group_bytes())};
  };
  for (int k = 0; k < groups_out; ++k) experts_.offload(layout_.order.groups[k]);
  for (int m = 0; m < layout_.moe_layers; ++m) create_layer(m);
  for (int k = 0; k < groups_out; ++k) {
    const GroupId id = layout_.order.groups[k];
    if (banks_.users(id) == 0)
      banks_.put(id, make_frame());
    else
      banks_.join(id);
  }
  if (layout_.base_pool_bytes > 0)
    kv_.set_base_pool(Extent(memory_, ledger_, layout_.base_pool_bytes));
  for (PoolSlot slot = 0; slot < layout_.pool_slots(groups_out); ++slot)
    kv_.put(slot, make_frame());

  Remap mappings = start_mappings();
  mappings.run(memory_);
  try {
    if (layout_.base_pool_bytes > 0) memory_.zero(kv_.base(), layout_.base_pool_bytes);
    for (PoolSlot slot = 0; slot < kv_.mapped_slots(); ++slot)
      memory_.zero(kv_.slot(slot), layout_.group_bytes());
    for (int m = 0; m < layout_.moe_layers; ++m)
      load(m, 0, layout_.groups_per_layer - experts_.groups_out(m));
  } catch (...) {
    mappings.take_back(memory_);
    throw;
  }
  check_sums();
}

// Handles in the order of their addresses: on the host neighbours become one kernel mapping.
void HbmPartition::create_layer(int moe_layer) {
  const int head = experts_.head_groups(moe_layer);
  const int resident = layout_.groups_per_layer - experts_.groups_out(moe_layer);
  const auto create = [&](size_t group_bytes, Extent& head_extent, std::vector<Extent>& tail) {
    if (head > 0) head_extent = Extent(memory_, ledger_, static_cast<size_t>(head) * group_bytes);
    for (int group = head; group < resident; ++group)
      tail.emplace_back(memory_, ledger_, group_bytes);
  };
  Extent head_gate_up, head_down;
  std::vector<Extent> gate_up, down;
  create(layout_.gate_up_group_bytes(), head_gate_up, gate_up);
  create(layout_.down_group_bytes(), head_down, down);
  if (head > 0) experts_.set_head(moe_layer, std::move(head_gate_up), std::move(head_down));
  for (size_t i = 0; i < gate_up.size(); ++i)
    experts_.set_frame({moe_layer, head + static_cast<int>(i)},
                       {std::move(gate_up[i]), std::move(down[i])});
}

Remap HbmPartition::start_mappings() const {
  Remap remap;
  const auto map = [&remap](std::byte* address, const Extent& extent) {
    remap.map(address, extent.bytes(), extent.handle());
  };
  for (int m = 0; m < layout_.moe_layers; ++m) {
    const int head = experts_.head_groups(m), groups = layout_.groups_per_layer;
    const auto frame = [&](GroupId id) -> const Frame& {
      return experts_.frame(id) ? experts_.frame(id) : banks_.frame(id);
    };
    if (head > 0) map(experts_.gate_up(m), experts_.head_gate_up(m));
    for (int g = head; g < groups; ++g) map(experts_.gate_up({m, g}), frame({m, g}).gate_up);
    if (head > 0) map(experts_.down(m), experts_.head_down(m));
    for (int g = head; g < groups; ++g) map(experts_.down({m, g}), frame({m, g}).down);
  }
  if (kv_.base_pool()) map(kv_.base(), kv_.base_pool());
  for (PoolSlot slot = 0; slot < kv_.mapped_slots(); ++slot) {
    map(kv_.slot(slot), kv_.frame(slot).gate_up);
    map(kv_.slot(slot) + layout_.gate_up_group_bytes(), kv_.frame(slot).down);
  }
  return remap;
}

void HbmPartition::load(int moe_layer, int first_group, int groups) const {
  const int first = first_group * layout_.shards_per_group;
  const int count = std::min(groups * layout_.shards_per_group, layout_.experts - first);
  if (count <= 0) return;
  const GroupId id{moe_layer, first_group};
  source_.copy_gate_up(moe_layer, first, count, experts_.gate_up(id));
  source_.copy_down(moe_layer, first, count, experts_.down(id));
}

void HbmPartition::check_order(const OffloadOrder& order) const {
  std::vector<int> out(static_cast<size_t>(layout_.moe_layers));
  for (const GroupId& id : order.groups) {
    VAMP_CHECK(id.moe_layer >= 0 && id.moe_layer < layout_.moe_layers, "MoE layer {}",
               id.moe_layer);
    VAMP_CHECK(id.group == layout_.groups_per_layer - 1 - out[id.moe_layer],
               "the order gives up group {} of MoE layer {} out of turn", id.group, id.moe_layer);
    VAMP_CHECK(++out[id.moe_layer] <= experts_.movable_groups(id.moe_layer),
               "the order gives up more of MoE layer {} than the layout allows", id.moe_layer);
  }
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

void HbmPartition::check_target(const PartitionTarget& target) const {
  VAMP_CHECK(target.order_version == layout_.order.version, "order {} is not the one in force, {}",
             target.order_version, layout_.order.version);
  VAMP_CHECK(
      target.groups_out >= layout_.min_groups_out && target.groups_out <= layout_.max_groups_out(),
      "boundary {} is not within {} ... {}", target.groups_out, layout_.min_groups_out,
      layout_.max_groups_out());
  std::set<PoolSlot> seen;
  const auto check_slots = [&](const std::vector<PoolSlot>& slots, bool mapped) {
    for (const PoolSlot slot : slots) {
      VAMP_CHECK(slot >= 0 && slot < kv_.slots(), "pool slot {} of {}", slot, kv_.slots());
      VAMP_CHECK(seen.insert(slot).second, "pool slot {} is named twice", slot);
      VAMP_CHECK(static_cast<bool>(kv_.frame(slot)) == mapped, "pool slot {} is {}", slot,
                 mapped ? "a hole" : "mapped");
    }
  };
  check_slots(target.map_slots, false);
  check_slots(target.unmap_slots, true);
  const int slots = kv_.mapped_slots() + static_cast<int>(target.map_slots.size()) -
                    static_cast<int>(target.unmap_slots.size());
  VAMP_CHECK(slots == layout_.pool_slots(target.groups_out),
             "{} pool slots at boundary {}, which has {}", slots, target.groups_out,
             layout_.pool_slots(target.groups_out));
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
  const auto zero = [this](PoolSlot slot) { memory_.zero(kv_.slot(slot), layout_.group_bytes()); };
  using Kind = Transfer::Kind;
  try {
    for (const Transfer& t : plan.transfers()) {
      if (t.kind == Kind::kFreeToSlot) zero(t.slot);
      if (t.kind == Kind::kFreeToGroup || t.kind == Kind::kBankToGroup)
        load(t.group.moe_layer, t.group.group, 1);
    }
  } catch (const Error& error) {
    plan.remap().take_back(memory_);
    // Bytes that may have been overwritten: of groups that stay after all, and of slots that stay
    // in the KV pool (their blocks were given up by the scheduler, so zeros are as good as new).
    try {
      for (const Transfer& t : plan.transfers()) {
        if (t.kind == Kind::kGroupToFree) load(t.group.moe_layer, t.group.group, 1);
        if (t.kind == Kind::kSlotToFree) zero(t.slot);
      }
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
    Frame frame = std::move(free_.back());
    free_.pop_back();
    return frame;
  };
  const auto push_free = [this](Frame frame) {
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

void HbmPartition::check_invariants() const {
  std::set<Handle> handles;
  std::array<size_t, kNumHolders> held{};
  const auto see = [&](const Extent& extent, Holder holder) {
    if (!extent) return;
    VAMP_CHECK(extent.holder() == holder, "an extent of the {} lies in the {}",
               holder_name(extent.holder()), holder_name(holder));
    VAMP_CHECK(handles.insert(extent.handle()).second, "handle {} is held twice",
               extent.handle().value);
    held[static_cast<size_t>(holder)] += extent.bytes();
  };
  const auto see_frame = [&](const Frame& frame, Holder holder) {
    see(frame.gate_up, holder);
    see(frame.down, holder);
  };
  std::set<std::pair<int, int>> places;
  for (int m = 0; m < layout_.moe_layers; ++m) {
    see(experts_.head_gate_up(m), Holder::kExpertStore);
    see(experts_.head_down(m), Holder::kExpertStore);
    const int resident = layout_.groups_per_layer - experts_.groups_out(m);
    VAMP_CHECK(experts_.groups_out(m) == layout_.groups_out(groups_out_, m), "MoE layer {}", m);
    for (int g = experts_.head_groups(m); g < layout_.groups_per_layer; ++g) {
      const GroupId id{m, g};
      VAMP_CHECK(static_cast<bool>(experts_.frame(id)) == (g < resident),
                 "group {} of MoE layer {}", g, m);
      see_frame(experts_.frame(id), Holder::kExpertStore);
      if (g < resident) continue;
      VAMP_CHECK(banks_.frame(id), "group {} of MoE layer {} has neither frame nor bank", g, m);
      if (places.insert({StagingBanks::bank(id), banks_.place(id)}).second)
        see_frame(banks_.frame(id), Holder::kStagingBank);
    }
  }
  see(kv_.base_pool(), Holder::kKvArena);
  for (PoolSlot slot = 0; slot < kv_.slots(); ++slot) see_frame(kv_.frame(slot), Holder::kKvArena);
  VAMP_CHECK(free_.empty(), "{} frames are free outside a move", free_.size());
  for (int h = 0; h < kNumHolders; ++h)
    VAMP_CHECK(held[h] == ledger_.held(static_cast<Holder>(h)),
               "the {} has {} bytes, the ledger says {}", holder_name(static_cast<Holder>(h)),
               held[h], ledger_.held(static_cast<Holder>(h)));
  check_sums();
}

void HbmPartition::check_sums() const {
  const int slots = layout_.pool_slots(groups_out_), banks = layout_.bank_groups(groups_out_);
  VAMP_CHECK(banks_.frames() == banks, "{} bank frames, the layout says {}", banks_.frames(),
             banks);
  VAMP_CHECK(kv_.mapped_slots() == slots, "{} pool slots, the layout says {}", kv_.mapped_slots(),
             slots);
  const auto check = [&](Holder holder, size_t bytes) {
    VAMP_CHECK(ledger_.held(holder) == bytes, "the {} has {} bytes, not {}", holder_name(holder),
               ledger_.held(holder), bytes);
  };
  const auto frames = [this](int count) {
    return static_cast<size_t>(count) * layout_.group_bytes();
  };
  check(Holder::kExpertStore, frames(layout_.total_groups() - groups_out_));
  check(Holder::kStagingBank, frames(banks));
  check(Holder::kKvArena, layout_.base_pool_bytes + frames(slots));
  check(Holder::kFree, 0);
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
  for (int m = 0; m < layout_.moe_layers; ++m) {
    unmap(experts_.gate_up(m), groups * layout_.gate_up_group_bytes());
    unmap(experts_.down(m), groups * layout_.down_group_bytes());
  }
  if (kv_.base_pool()) unmap(kv_.base(), layout_.base_pool_bytes);
  for (PoolSlot slot = 0; slot < kv_.slots(); ++slot)
    if (kv_.frame(slot)) unmap(kv_.slot(slot), layout_.group_bytes());
}

}  // namespace vamp
