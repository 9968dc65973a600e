#include "core/prefix_index.h"

#include "base/error.h"

namespace vamp {

NodeId PrefixIndex::add(const PrefixKey& key, NodeId parent) {
  NodeId id;
  if (unused_.empty()) {
    id = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back();
  } else {
    id = unused_.back();
    unused_.pop_back();
    nodes_[id] = PrefixNode();
  }
  PrefixNode& node = nodes_[id];
  node.key = key;
  node.alive = true;
  node.parent = parent;
  if (parent != kNoId) {
    PrefixNode& above = nodes_[parent];
    node.depth = above.depth + 1;
    node.next_sibling = above.first_child;
    if (above.first_child != kNoId) nodes_[above.first_child].previous_sibling = id;
    above.first_child = id;
  }
  const bool added = by_key_.emplace(key, id).second;
  VAMP_CHECK(added, "a prefix block is published twice");
  return id;
}

void PrefixIndex::remove(NodeId id) {
  PrefixNode& node = nodes_[id];
  VAMP_CHECK(
      node.first_child == kNoId && node.device == kNoId && node.host == kNoId && node.run == kNoId,
      "prefix node {} is removed while in use", id);
  if (node.previous_sibling != kNoId) {
    nodes_[node.previous_sibling].next_sibling = node.next_sibling;
  } else if (node.parent != kNoId) {
    nodes_[node.parent].first_child = node.next_sibling;
  }
  if (node.next_sibling != kNoId)
    nodes_[node.next_sibling].previous_sibling = node.previous_sibling;
  by_key_.erase(node.key);
  node.alive = false;
  unused_.push_back(id);
}

void PrefixIndex::set_device(NodeId id, BlockId block) {
  PrefixNode& node = nodes_[id];
  const int change = (block != kNoId) - (node.device != kNoId);
  node.device = block;
  if (node.parent != kNoId) nodes_[node.parent].device_children += change;
}

void PrefixIndex::check_invariants() const {
  int alive = 0;
  std::vector<int> device_children(nodes_.size(), 0), children(nodes_.size(), 0);
  for (NodeId id = 0; id < capacity(); ++id) {
    const PrefixNode& node = nodes_[id];
    if (!node.alive) continue;
    ++alive;
    VAMP_CHECK(find(node.key) == id, "node {} is not found by its key", id);
    VAMP_CHECK(node.device != kNoId || node.host != kNoId, "node {} has no content", id);
    VAMP_CHECK(node.device != kNoId || node.host_ready, "node {} has no content yet", id);
    if (node.parent == kNoId) continue;
    const PrefixNode& parent = nodes_[node.parent];
    VAMP_CHECK(parent.alive && parent.depth + 1 == node.depth, "parent of node {}", id);
    VAMP_CHECK(node.device == kNoId || parent.device != kNoId,
               "node {} is on the device, its parent is not", id);
    ++children[node.parent];
    device_children[node.parent] += node.device != kNoId;
  }
  VAMP_CHECK(alive == size(), "{} nodes alive, {} keys", alive, size());
  for (NodeId id = 0; id < capacity(); ++id) {
    const PrefixNode& node = nodes_[id];
    if (!node.alive) continue;
    VAMP_CHECK(node.device_children == device_children[id], "device children of node {}", id);
    int listed = 0;
    for (NodeId child = node.first_child; child != kNoId; child = nodes_[child].next_sibling) {
      VAMP_CHECK(nodes_[child].alive && nodes_[child].parent == id, "child list of node {}", id);
      ++listed;
    }
    VAMP_CHECK(listed == children[id], "node {} lists {} children of {}", id, listed, children[id]);
  }
}

}  // namespace vamp
