// Blocks in flight: copies between the tiers, moves within the device, and undoing both when a step
// was not carried out.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "core/block_manager.h"

namespace vamp {

void BlockManager::start_copy(BlockId device, HostBlockId host, CopyKind kind, StepPlan& plan) {
  Block& block = pool_.at(device);
  VAMP_CHECK(block.copy == CopyKind::kNone, "block {} is being copied already", device);
  block.copy = kind;
  block.copy_host = host;
  ++copies_in_flight_;
  demotions_in_flight_ += kind == CopyKind::kDemote;
  count_leaving(device);
  (kind == CopyKind::kDemote ? plan.demote : plan.promote).push_back({device, host});
}

void BlockManager::end_copy(BlockId device, HostBlockId host, CopyKind kind) {
  Block& block = pool_.at(device);
  VAMP_CHECK(block.copy == kind && block.copy_host == host,
             "no copy of block {} and host block {} is under way", device, host);
  block.copy = CopyKind::kNone;
  block.copy_host = kNoId;
  --copies_in_flight_;
  demotions_in_flight_ -= kind == CopyKind::kDemote;
  count_leaving(device);
}

void BlockManager::demoted(const BlockCopy& copy) {
  end_copy(copy.device, copy.host, CopyKind::kDemote);
  const NodeId id = pool_.at(copy.device).node;
  if (id != kNoId) {
    index_.at(id).host_ready = true;
    kv_events_.stored(CacheTier::kHost, id);
    order_.count_clean(id, 1);
    host_.list(copy.host);
    leave_if_ready(id);
    return;
  }
  pool_.free(copy.device, sent_);
  if (host_.at(copy.host).abandoned) {
    host_.free(copy.host);
  } else {
    swap_ready_[copy.host] = true;
  }
}

void BlockManager::promoted(const BlockCopy& copy) {
  end_copy(copy.device, copy.host, CopyKind::kPromote);
  const NodeId id = pool_.at(copy.device).node;
  if (id != kNoId) {
    host_.list(copy.host);
    leave_if_ready(id);
    return;
  }
  host_.free(copy.host);
  // Its owner may have gone meanwhile.
  if (pool_.at(copy.device).refs == 0) pool_.free(copy.device, sent_);
}

HostBlockId BlockManager::swap_out_last(BlockTable& table, StepPlan& plan) {
  const BlockId id = table.back();
  VAMP_CHECK(pool_.at(id).node == kNoId, "block {} is published: it is demoted, not swapped", id);
  const HostBlockId host = allocate_host(kNoId);
  if (host == kNoId) return kNoId;
  table.pop_back();
  remove_reference(id);
  swap_ready_[host] = false;
  start_copy(id, host, CopyKind::kDemote, plan);
  return host;
}

void BlockManager::swap_in(HostBlockId host, BlockTable& table, StepPlan& plan) {
  VAMP_CHECK(swap_ready_[host], "host block {} is not complete yet", host);
  allocate(1, table);
  start_copy(table.back(), host, CopyKind::kPromote, plan);
}

void BlockManager::discard_swapped(HostBlockId host) {
  if (swap_ready_[host]) {
    host_.free(host);
  } else {
    host_.at(host).abandoned = true;
  }
}

void BlockManager::relocate(std::span<const BlockId> blocks, std::vector<BlockMove>& moves) {
  for (BlockId from : blocks) {
    Block& old = pool_.at(from);
    if (!old.live || old.copy != CopyKind::kNone) continue;
    if (free_blocks() == 0) return;
    const BlockId to = pool_.allocate();
    Block& block = pool_.at(to);
    block.refs = std::exchange(old.refs, 0);
    block.node = std::exchange(old.node, kNoId);
    if (block.node != kNoId) index_.at(block.node).device = to;
    pool_.free(from, step_);  // this plan reads it
    moves.push_back({from, to});
  }
}

bool BlockManager::drained(std::span<const BlockId> blocks) const {
  return std::all_of(blocks.begin(), blocks.end(), [&](BlockId id) {
    return !pool_.at(id).live && pool_.at(id).last_use <= answered_;
  });
}

void BlockManager::undo_copies(std::span<const BlockCopy> demotes,
                               std::span<const BlockCopy> promotes) {
  for (const BlockCopy& copy : demotes) {
    end_copy(copy.device, copy.host, CopyKind::kDemote);
    const NodeId id = pool_.at(copy.device).node;
    if (id != kNoId) {
      index_.at(id).host = kNoId;
      set_leaving(id, false);
    } else {
      pool_.free(copy.device, sent_);
    }
    host_.free(copy.host);
  }
  // Children before parents.
  for (size_t i = promotes.size(); i-- > 0;) {
    const BlockCopy& copy = promotes[i];
    end_copy(copy.device, copy.host, CopyKind::kPromote);
    const NodeId id = pool_.at(copy.device).node;
    if (id != kNoId) {
      host_.list(copy.host);
      detach_device(id);
    } else {
      host_.free(copy.host);
      pool_.free(copy.device, sent_);
    }
  }
}

void BlockManager::undo_moves(std::span<const BlockMove> moves) {
  for (size_t i = moves.size(); i-- > 0;) {
    Block& to = pool_.at(moves[i].to);
    // Dropped since, or private: nothing to bring back.
    if (!to.live || to.node == kNoId) continue;
    pool_.take(moves[i].from);
    Block& from = pool_.at(moves[i].from);
    from.node = std::exchange(to.node, kNoId);
    index_.at(from.node).device = moves[i].from;
    pool_.free(moves[i].to, sent_);
  }
}

void BlockManager::forget_written_since(StepId step) {
  for (bool again = true; again;) {
    again = false;
    for (RunId run = order_.coldest(); run != kNoId;) {
      const RunId hotter = order_.at(run).hotter;
      NodeId tail = order_.at(run).tail;
      while (tail != kNoId && index_.at(tail).run == run && index_.at(tail).written >= step &&
             droppable(tail)) {
        const NodeId parent = index_.at(tail).parent;
        drop_tail(tail, 0);
        again = true;
        tail = parent;
      }
      run = hotter;
    }
  }
}

}  // namespace vamp
