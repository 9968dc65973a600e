// What HbmPartition checks of itself and of those who call it.
#include <array>
#include <set>
#include <utility>

#include "base/error.h"
#include "memory/hbm_partition.h"

namespace vamp {

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
  std::set<std::pair<int, int>> places;
  for (int m = 0; m < layout_.moe_layers; ++m) {
    see(experts_.head(m), Holder::kExpertStore);
    const int resident = layout_.groups_per_layer - experts_.groups_out(m);
    VAMP_CHECK(experts_.groups_out(m) == layout_.groups_out(groups_out_, m), "MoE layer {}", m);
    for (int g = experts_.head_groups(m); g < layout_.groups_per_layer; ++g) {
      const GroupId id{m, g};
      VAMP_CHECK(static_cast<bool>(experts_.frame(id)) == (g < resident),
                 "group {} of MoE layer {}", g, m);
      see(experts_.frame(id), Holder::kExpertStore);
      if (g < resident) continue;
      VAMP_CHECK(banks_.frame(id), "group {} of MoE layer {} has neither frame nor bank", g, m);
      if (places.insert({StagingBanks::bank(id), banks_.place(id)}).second)
        see(banks_.frame(id), Holder::kStagingBank);
    }
  }
  see(kv_.base_pool(), Holder::kKvArena);
  for (PoolSlot slot = 0; slot < kv_.slots(); ++slot) see(kv_.frame(slot), Holder::kKvArena);
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

}  // namespace vamp
