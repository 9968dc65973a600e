#include "memory/partition_plan.h"

#include "base/error.h"

namespace vamp {

PartitionPlan::Place& PartitionPlan::place(GroupId id) {
  const auto [it, added] = places_.try_emplace({StagingBanks::bank(id), banks_.place(id)});
  if (added) it->second = {handles(banks_.frame(id)), banks_.users(id)};
  return it->second;
}

PartitionPlan::Handles PartitionPlan::pop_free() {
  VAMP_CHECK(!free_.empty(), "a move needs more frames than it frees");
  const Handles frame = free_.back();
  free_.pop_back();
  return frame;
}

void PartitionPlan::remap_group(GroupId id, Handles from, Handles to) {
  const size_t gate_up = layout_.gate_up_group_bytes(), down = layout_.down_group_bytes();
  remap_.unmap(experts_.gate_up(id), gate_up, from.gate_up);
  remap_.unmap(experts_.down(id), down, from.down);
  remap_.map(experts_.gate_up(id), gate_up, to.gate_up);
  remap_.map(experts_.down(id), down, to.down);
}

void PartitionPlan::offload(GroupId id) {
  const Handles own = handles(experts_.frame(id));
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
  const Handles frame = handles(kv_.frame(slot));
  std::byte* address = kv_.slot(slot);
  remap_.unmap(address, layout_.gate_up_group_bytes(), frame.gate_up);
  remap_.unmap(address + layout_.gate_up_group_bytes(), layout_.down_group_bytes(), frame.down);
  free_.push_back(frame);
  transfers_.push_back({Transfer::Kind::kSlotToFree, {}, slot});
}

void PartitionPlan::map(PoolSlot slot) {
  const Handles frame = pop_free();
  std::byte* address = kv_.slot(slot);
  remap_.map(address, layout_.gate_up_group_bytes(), frame.gate_up);
  remap_.map(address + layout_.gate_up_group_bytes(), layout_.down_group_bytes(), frame.down);
  transfers_.push_back({Transfer::Kind::kFreeToSlot, {}, slot});
}

}  // namespace vamp
