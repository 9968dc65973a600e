// The prefix cache's table of contents: a tree of published blocks, found by key.
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <span>
#include <vector>

#include "core/block_pool.h"
#include "core/prefix_key.h"

namespace vamp {

using RunId = int32_t;  // an EvictionOrder entry

// Content of one full block: on the device, in the host tier, or both. A node exists while it has
// content; its parent then exists too, and is on the device if the node is.
struct PrefixNode {
  PrefixKey key;
  NodeId parent = kNoId;
  NodeId first_child = kNoId, next_sibling = kNoId, previous_sibling = kNoId;
  int32_t device_children = 0;  // children with a device block
  int32_t depth = 0;            // blocks before it in the chain
  BlockId device = kNoId;
  HostBlockId host = kNoId;
  RunId run = kNoId;        // where it stands in the eviction order; kNoId: referenced or in flight
  bool host_ready = false;  // its copy to the host has ended
  bool leaving = false;     // drop the device copy as soon as the host has one
  bool alive = false;
  StepId written = 0;     // the plan that computes its device content
  SessionId session = 0;  // who used it last
};

// Owns the nodes. Knows nothing of references, order or copies. One thread.
class PrefixIndex {
 public:
  NodeId find(const PrefixKey& key) const {
    const auto it = by_key_.find(key);
    return it == by_key_.end() ? kNoId : it->second;
  }
  PrefixNode& at(NodeId id) { return nodes_[id]; }
  const PrefixNode& at(NodeId id) const { return nodes_[id]; }
  int size() const { return static_cast<int>(by_key_.size()); }
  int capacity() const { return static_cast<int>(nodes_.size()); }

  NodeId add(const PrefixKey& key, NodeId parent);
  // The node has no children and no content.
  void remove(NodeId id);
  void set_device(NodeId id, BlockId block);  // kNoId: the device copy is gone

  void check_invariants() const;

 private:
  std::vector<PrefixNode> nodes_;
  std::vector<NodeId> unused_;
  boost::unordered_flat_map<PrefixKey, NodeId, PrefixKeyHash> by_key_;
};

}  // namespace vamp
