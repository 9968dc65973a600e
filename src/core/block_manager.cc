// A request's way through the cache: match, hold, allocate, publish, release.
#include "core/block_manager.h"

#include <algorithm>
#include <limits>

#include "base/error.h"

namespace vamp {

BlockManager::BlockManager(const MemoryLayout& layout, int host_blocks, int max_ghosts,
                           bool kv_events)
    : block_tokens_(layout.block_tokens),
      pool_(layout),
      order_(index_),
      host_(host_blocks),
      ghosts_(max_ghosts),
      kv_events_(index_, layout.block_tokens, kv_events),
      swap_ready_(host_blocks, false) {}

PrefixMatch BlockManager::match(std::span<const PrefixKey> keys, int max_blocks) const {
  const auto end = keys.begin() + std::min<size_t>(keys.size(), std::max(max_blocks, 0));
  const auto count = [&](auto begin, auto last, auto&& has) {
    return static_cast<int>(std::partition_point(begin, last, has) - keys.begin());
  };
  PrefixMatch match;
  const int known =
      count(keys.begin(), end, [&](const PrefixKey& key) { return index_.find(key) != kNoId; });
  const auto known_end = keys.begin() + known;
  const int on_device = count(keys.begin(), known_end, [&](const PrefixKey& key) {
    return index_.at(index_.find(key)).device != kNoId;
  });
  match.device_blocks = count(keys.begin(), keys.begin() + on_device, [&](const PrefixKey& key) {
    return index_.at(index_.find(key)).written < step_;
  });
  match.being_computed = match.device_blocks < on_device;
  if (!match.being_computed) match.host_blocks = known - on_device;
  return match;
}

void BlockManager::hold(std::span<const PrefixKey> keys, const PrefixMatch& match,
                        BlockTable& table) {
  VAMP_CHECK(table.empty(), "hold() into a table in use");
  if (match.total() == 0) return;
  collect_chain(keys[match.total() - 1], match.total());
  for (int i = 0; i < match.host_blocks; ++i) host_.unlist(index_.at(stack_[i]).host);
  for (int i = match.total(); i-- > match.host_blocks;) {
    const PrefixNode& node = index_.at(stack_[i]);
    if (node.run != kNoId) order_.take_top(stack_[i]);
    set_leaving(stack_[i], false);
    add_reference(node.device);
    table.push_back(node.device);
  }
}

void BlockManager::promote(std::span<const PrefixKey> keys, const PrefixMatch& match,
                           BlockTable& table, StepPlan& plan) {
  if (match.host_blocks == 0) return;
  collect_chain(keys[match.total() - 1], match.host_blocks);
  for (int i = match.host_blocks; i-- > 0;) {
    const BlockId block = pool_.allocate();
    PrefixNode& node = index_.at(stack_[i]);
    index_.set_device(stack_[i], block);
    kv_events_.stored(CacheTier::kDevice, stack_[i]);
    node.written = 0;
    pool_.at(block).node = stack_[i];
    add_reference(block);
    start_copy(block, node.host, CopyKind::kPromote, plan);
    table.push_back(block);
  }
}

void BlockManager::let_go(std::span<const PrefixKey> keys, const PrefixMatch& match,
                          BlockTable& table, SessionId session) {
  if (match.host_blocks > 0) {
    collect_chain(keys[match.total() - 1], match.host_blocks);
    for (NodeId id : stack_) host_.list(index_.at(id).host);
  }
  release(table, std::numeric_limits<int>::max(), session, /*over=*/false);
}

// The `count` nodes that end with `last`, into stack_, last first: parent links instead of a
// look-up per block.
void BlockManager::collect_chain(const PrefixKey& last, int count) {
  stack_.clear();
  for (NodeId id = index_.find(last); static_cast<int>(stack_.size()) < count;
       id = index_.at(id).parent) {
    stack_.push_back(id);
  }
}

void BlockManager::allocate(int count, BlockTable& table) {
  for (int i = 0; i < count; ++i) {
    const BlockId block = pool_.allocate();
    add_reference(block);
    table.push_back(block);
  }
}

void BlockManager::trim(BlockTable& table, int keep) {
  while (static_cast<int>(table.size()) > keep) {
    VAMP_CHECK(pool_.at(table.back()).node == kNoId, "a published block is trimmed");
    remove_reference(table.back());
    pool_.free(table.back(), sent_);
    table.pop_back();
  }
}

BlockManager::Published BlockManager::publish(BlockTable& table, int index, const PrefixKey& key,
                                              std::span<const TokenId> tokens, StepId written,
                                              bool may_adopt) {
  const BlockId own = table[index];
  const NodeId found = index_.find(key);
  if (found == kNoId || index_.at(found).device == kNoId) {
    NodeId id = found;
    if (id == kNoId) id = index_.add(key, index == 0 ? kNoId : pool_.at(table[index - 1]).node);
    index_.set_device(id, own);
    kv_events_.name(id, tokens);
    kv_events_.stored(CacheTier::kDevice, id);
    index_.at(id).written = written;
    pool_.at(own).node = id;
    return Published::kNew;
  }
  PrefixNode& node = index_.at(found);
  VAMP_CHECK(node.device != own, "block {} is published twice", own);
  // While the other one is still being filled from the host, neither can stand for the other.
  if (!may_adopt || arriving(node.device)) return Published::kNotYet;
  if (node.run != kNoId) order_.take_top(found);
  set_leaving(found, false);
  add_reference(node.device);
  table[index] = node.device;
  if (remove_reference(own)) pool_.free(own, sent_);
  return Published::kAdopted;
}

RunId BlockManager::release(BlockTable& table, int arriving_from, SessionId session, bool over) {
  NodeId tail = kNoId;
  int length = 0;
  for (int i = static_cast<int>(table.size()) - 1; i >= 0; --i) {
    const BlockId block = table[i];
    const bool last = remove_reference(block);
    const NodeId id = pool_.at(block).node;
    if (id != kNoId) {
      PrefixNode& node = index_.at(id);
      if (node.host != kNoId && host_.at(node.host).listed) host_.touch(node.host);
      if (last && i >= arriving_from) {
        set_leaving(id, true);
        node.session = session;
        leave_if_ready(id);
      } else if (last) {
        if (length++ == 0) tail = id;
      }
    } else if (last && !arriving(block)) {
      pool_.free(block, sent_);
    }
  }
  table.clear();
  if (length == 0) return kNoId;
  if (!over) return order_.add(tail, length, session, step_, now_, false);
  // What other chains hang on stays in its place: only the end that is this request's alone goes.
  int alone = 0;
  NodeId id = tail;
  for (; alone < length && index_.at(id).device_children == (alone == 0 ? 0 : 1); ++alone) {
    id = index_.at(id).parent;
  }
  if (alone < length) order_.add(id, length - alone, session, step_, now_, false);
  if (alone == 0) return kNoId;
  return order_.add(tail, alone, session, step_, now_, true);
}

SessionId BlockManager::session_of(const PrefixKey& key) const {
  const NodeId id = index_.find(key);
  return id == kNoId ? 0 : index_.at(id).session;
}

std::vector<PrefixKey> BlockManager::cached_keys(CacheTier tier) const {
  std::vector<PrefixKey> keys;
  for (NodeId id = 0; id < index_.capacity(); ++id) {
    const PrefixNode& node = index_.at(id);
    const bool held = tier == CacheTier::kDevice ? node.device != kNoId : node.host_ready;
    if (node.alive && held) keys.push_back(node.key);
  }
  return keys;
}

int BlockManager::unshared_blocks(const BlockTable& table) const {
  // Whoever holds a block holds what is before it.
  const auto first = std::partition_point(table.begin(), table.end(),
                                          [&](BlockId id) { return pool_.at(id).refs > 1; });
  return static_cast<int>(table.end() - first);
}

void BlockManager::add_reference(BlockId id) {
  if (pool_.at(id).refs++ == 0) ++referenced_;
}

bool BlockManager::remove_reference(BlockId id) {
  VAMP_CHECK(pool_.at(id).refs > 0, "block {} is released twice", id);
  if (--pool_.at(id).refs > 0) return false;
  --referenced_;
  return true;
}

}  // namespace vamp
