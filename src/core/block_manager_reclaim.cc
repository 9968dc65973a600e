// Making room: dropping and demoting cached blocks, and what the host tier drops for them.
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "core/block_manager.h"

namespace vamp {

// A cached block that can go now: nothing on the device hangs on it and no copy reads it.
bool BlockManager::droppable(NodeId id) const {
  const PrefixNode& node = index_.at(id);
  return node.device_children == 0 && pool_.at(node.device).copy == CopyKind::kNone;
}

int BlockManager::drop_coldest(int count, uint64_t decision) {
  int dropped = 0;
  // Runs whose end is pinned by a copy, or by a hotter child that it brings, are passed over: there
  // are no more of them than copies in flight.
  for (RunId run = order_.coldest(); run != kNoId && dropped < count;) {
    const NodeId tail = order_.at(run).tail;
    if (!droppable(tail)) {
      run = order_.at(run).hotter;
      continue;
    }
    const RunId hotter = order_.at(run).hotter;
    const bool last = order_.at(run).length == 1;
    drop_tail(tail, decision);
    ++dropped;
    if (last) run = hotter;
  }
  return dropped;
}

int BlockManager::drop(uint64_t handle, int count, uint64_t decision) {
  int dropped = 0;
  for (RunId run = order_.resolve(handle); run != kNoId && dropped < count; ++dropped) {
    const NodeId tail = order_.at(run).tail;
    if (!droppable(tail)) break;
    drop_tail(tail, decision);
    run = order_.resolve(handle);
  }
  return dropped;
}

void BlockManager::drop_run(RunId run) {
  drop(order_.handle(run), order_.at(run).length, 0);
}

int BlockManager::demote(uint64_t handle, int count, bool evict, StepPlan& plan) {
  const RunId run = order_.resolve(handle);
  return run == kNoId ? 0 : demote_from(run, count, evict, plan);
}

int BlockManager::demote_run(RunId run, bool evict, StepPlan& plan) {
  return run == kNoId ? 0 : demote_from(run, order_.at(run).length, evict, plan);
}

int BlockManager::demote_from(RunId run, int count, bool evict, StepPlan& plan) {
  const int free_before = free_blocks();
  NodeId id = order_.at(run).tail;
  for (int i = 0; i < count && id != kNoId && index_.at(id).run == run; ++i) {
    const NodeId parent = index_.at(id).parent;
    if (index_.at(id).host == kNoId && pool_.at(index_.at(id).device).copy == CopyKind::kNone) {
      const HostBlockId host = allocate_host(id);
      if (host == kNoId) break;
      index_.at(id).host = host;
      start_copy(index_.at(id).device, host, CopyKind::kDemote, plan);
    }
    if (evict) {
      set_leaving(id, true);
      leave_if_ready(id);
    }
    id = parent;
  }
  return free_blocks() - free_before;
}

void BlockManager::candidates(int max, int segment_blocks,
                              std::vector<EvictionCandidate>& out) const {
  out.clear();
  for (RunId id = order_.coldest(); id != kNoId && static_cast<int>(out.size()) < max;
       id = order_.at(id).hotter) {
    const EvictionRun& run = order_.at(id);
    if (!droppable(run.tail)) continue;
    EvictionCandidate candidate;
    candidate.blocks = std::min(run.length, segment_blocks);
    candidate.tokens = candidate.blocks * block_tokens_;
    candidate.prefix_tokens = (index_.at(run.tail).depth + 1 - candidate.blocks) * block_tokens_;
    candidate.last_used_step = run.last_used_step;
    candidate.last_used = run.last_used;
    candidate.session = run.session;
    candidate.handle = order_.handle(id);
    if (run.clean == run.length) {
      candidate.clean_blocks = candidate.blocks;
    } else if (run.clean > 0) {
      NodeId node = run.tail;
      for (int i = 0; i < candidate.blocks; ++i, node = index_.at(node).parent) {
        candidate.clean_blocks += index_.at(node).host_ready;
      }
    }
    out.push_back(candidate);
  }
}

void BlockManager::dirty_runs(int max, std::vector<EvictionCandidate>& out) const {
  constexpr int kMaxScanned = 256;
  out.clear();
  int scanned = 0;
  for (RunId id = order_.coldest();
       id != kNoId && static_cast<int>(out.size()) < max && ++scanned <= kMaxScanned;
       id = order_.at(id).hotter) {
    const EvictionRun& run = order_.at(id);
    if (run.clean == run.length) continue;
    EvictionCandidate candidate;
    candidate.blocks = run.length;
    candidate.tokens = run.length * block_tokens_;
    candidate.prefix_tokens = (index_.at(run.tail).depth + 1 - run.length) * block_tokens_;
    candidate.last_used_step = run.last_used_step;
    candidate.last_used = run.last_used;
    candidate.session = run.session;
    candidate.clean_blocks = run.clean;
    candidate.handle = order_.handle(id);
    out.push_back(candidate);
  }
}

void BlockManager::reset_cache() {
  drop_coldest(cached_blocks(), 0);
  // Children hang on parents: pass after pass, until only what running requests hold is left.
  for (int freed = 1; freed > 0;) {
    freed = 0;
    for (HostBlockId id = 0; id < host_.capacity(); ++id) {
      if (!host_.at(id).listed) continue;
      const NodeId node = host_.at(id).node;
      if (index_.at(node).device == kNoId && index_.at(node).first_child != kNoId) continue;
      if (index_.at(node).leaving) continue;
      ++freed;
      if (index_.at(node).device == kNoId) {
        forget(node, std::nullopt);
      } else {
        drop_host(node);
      }
    }
  }
  if (index_.size() == 0) kv_events_.cleared();
}

// The device copy of a run's last block goes; the content stays if the host has it.
void BlockManager::drop_tail(NodeId id, uint64_t decision) {
  order_.take_tail(id);
  const bool lost = !index_.at(id).host_ready;
  detach_device(id);
  if (!lost) return;
  forget(id, decision == 0 ? std::nullopt : std::optional(Ghost{decision, now_}));
}

void BlockManager::detach_device(NodeId id) {
  PrefixNode& node = index_.at(id);
  VAMP_CHECK(node.device_children == 0, "node {} leaves the device before its children", id);
  const BlockId block = node.device;
  set_leaving(id, false);
  kv_events_.removed(CacheTier::kDevice, id);
  index_.set_device(id, kNoId);
  pool_.at(block).node = kNoId;
  pool_.free(block, sent_);
}

void BlockManager::set_leaving(NodeId id, bool leaving) {
  index_.at(id).leaving = leaving;
  count_leaving(index_.at(id).device);
}

void BlockManager::count_leaving(BlockId id) {
  Block& block = pool_.at(id);
  const bool leaving =
      block.copy == CopyKind::kDemote && (block.node == kNoId || index_.at(block.node).leaving);
  leaving_ += leaving - block.leaving;
  block.leaving = leaving;
}

// Carries out what `leaving` promised, for the node and then for parents that waited for it.
void BlockManager::leave_if_ready(NodeId id) {
  while (id != kNoId) {
    const PrefixNode& node = index_.at(id);
    if (!node.leaving || node.device == kNoId || node.device_children > 0) return;
    if (pool_.at(node.device).refs > 0 || pool_.at(node.device).copy != CopyKind::kNone) return;
    // In the eviction order it may still stay; outside of it nothing else would ever free it.
    if (!node.host_ready && node.run != kNoId) return;
    const NodeId parent = node.parent;
    const bool lost = !node.host_ready;
    if (node.run != kNoId) order_.take_tail(id);
    detach_device(id);
    if (lost) forget(id, std::nullopt);
    id = parent;
  }
}

// Content is lost. What hangs on it in the host tier could never be reached again: it goes too.
// With a ghost it is remembered, so that asking for it again can be charged.
void BlockManager::forget(NodeId id, std::optional<Ghost> ghost) {
  stack_.assign(1, id);
  while (!stack_.empty()) {
    const NodeId last = stack_.back();
    PrefixNode& node = index_.at(last);
    if (node.first_child != kNoId) {
      stack_.push_back(node.first_child);
      continue;
    }
    VAMP_CHECK(node.device == kNoId, "node {} is lost while on the device", last);
    if (node.host_ready) kv_events_.removed(CacheTier::kHost, last);
    if (node.host != kNoId) host_.free(node.host);
    node.host = kNoId;
    if (ghost) ghosts_.remember(node.key, *ghost);
    index_.remove(last);
    stack_.pop_back();
  }
}

// The host tier's copy of what the device holds too.
void BlockManager::drop_host(NodeId id) {
  PrefixNode& node = index_.at(id);
  kv_events_.removed(CacheTier::kHost, id);
  order_.count_clean(id, -1);
  host_.free(std::exchange(node.host, kNoId));
  node.host_ready = false;
}

// A host block for `node`: a free one, or the coldest that can go. kNoId: all are pinned.
HostBlockId BlockManager::allocate_host(NodeId for_node) {
  // A parent that is colder than its children, or a copy on which a promise rests, gets a second
  // chance; each such step is paid for by the use that made the children hotter.
  for (int tries = host_.listed_blocks(); host_.free_blocks() == 0 && tries > 0; --tries) {
    const HostBlockId coldest = host_.coldest();
    const NodeId id = host_.at(coldest).node;
    const PrefixNode& node = index_.at(id);
    if (node.leaving || (node.device == kNoId && node.first_child != kNoId)) {
      host_.touch(coldest);
    } else if (node.device == kNoId) {
      forget(id, Ghost{0, now_});
    } else {
      drop_host(id);
    }
  }
  return host_.free_blocks() == 0 ? kNoId : host_.allocate(for_node);
}

}  // namespace vamp
