#include "memory/partition_plan.h"

#include "base/error.h"

namespace vamp {

PartitionPlan::Place& PartitionPlan::place(GroupId id) {
  const auto [it, added] = places_.try_emplace({StagingBanks::bank(id), banks_.place(id)});
  if (added) it->second = {banks_.frame(id).handle(), banks_.users(id)};
  return it->second;
}

Handle PartitionPlan::pop_free() {
  VAMP_CHECK(!free_.empty(), "a move needs more frames than it frees");
  const Handle frame = free_.back();
  free_.pop_back();
  return frame;
}

void PartitionPlan::remap_group(GroupId id, Handle from, Handle to) {
  remap_.unmap(experts_.group(id), layout_.group_bytes(), from);
  remap_.map(experts_.group(id), layout_.group_bytes(), to);
}

void PartitionPlan::offload(GroupId id) {
  const Handle own = experts_.frame(id).handle();
  Place& bank = place(id);
  if (bank.users++ == 0) {
    bank.frame = own;
    transfers_.push_back({Transfer::Kind::kGroupToBank, id});
    return;
  }
  remap_group(id, own, bank.frame);
  free_.push_back(own);
  transfers_.push_back({Transfer::Kind::kGroupToFree, id});
}

void PartitionPlan::restore(GroupId id) {
  Place& bank = place(id);
  if (--bank.users == 0) {
    transfers_.push_back({Transfer::Kind::kBankToGroup, id});
    return;
  }
  remap_group(id, bank.frame, pop_free());
  transfers_.push_back({Transfer::Kind::kFreeToGroup, id});
}

void PartitionPlan::unmap(PoolSlot slot) {
  const Handle frame = kv_.frame(slot).handle();
  remap_.unmap(kv_.slot(slot), layout_.group_bytes(), frame);
  free_.push_back(frame);
  transfers_.push_back({Transfer::Kind::kSlotToFree, {}, slot});
}

void PartitionPlan::map(PoolSlot slot) {
  remap_.map(kv_.slot(slot), layout_.group_bytes(), pop_free());
  transfers_.push_back({Transfer::Kind::kFreeToSlot, {}, slot});
}

}  // namespace vamp
