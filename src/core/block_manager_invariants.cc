// The whole cache against itself and against the tables of those who use it.
#include <unordered_map>

#include "base/error.h"
#include "core/block_manager.h"

namespace vamp {

void BlockManager::check_invariants(std::span<const BlockTable* const> tables) const {
  pool_.check_invariants();
  index_.check_invariants();
  order_.check_invariants();
  host_.check_invariants();

  std::unordered_map<BlockId, int> holders;
  for (const BlockTable* table : tables) {
    NodeId above = kNoId;
    bool published = true;
    for (BlockId id : *table) {
      ++holders[id];
      const NodeId node = pool_.at(id).node;
      published = published && node != kNoId;
      VAMP_CHECK(published == (node != kNoId), "a published block follows an unpublished one");
      VAMP_CHECK(node == kNoId || index_.at(node).parent == above, "a table is not a chain");
      above = node;
    }
  }
  int referenced = 0, copies = 0, demotions = 0, leaving = 0;
  std::unordered_map<HostBlockId, BlockId> host_copies;
  for (BlockId id = 0; id < pool_.size(); ++id) {
    const Block& block = pool_.at(id);
    const auto held = holders.find(id);
    VAMP_CHECK(block.refs == (held == holders.end() ? 0 : held->second),
               "block {} has {} references, {} holders", id, block.refs,
               held == holders.end() ? 0 : held->second);
    referenced += block.refs > 0;
    leaving +=
        block.copy == CopyKind::kDemote && (block.node == kNoId || index_.at(block.node).leaving);
    if (block.copy != CopyKind::kNone) {
      ++copies;
      demotions += block.copy == CopyKind::kDemote;
      VAMP_CHECK(host_copies.emplace(block.copy_host, id).second, "host block {} is copied twice",
                 block.copy_host);
      VAMP_CHECK(host_.at(block.copy_host).used && !host_.at(block.copy_host).listed,
                 "host block {} is not pinned by its copy", block.copy_host);
    }
    if (block.node == kNoId) {
      VAMP_CHECK(!block.live || block.refs > 0 || block.copy != CopyKind::kNone, "block {} is lost",
                 id);
      continue;
    }
    const PrefixNode& node = index_.at(block.node);
    VAMP_CHECK(node.alive && node.device == id, "block {} and its node", id);
    // A cached block stands in the eviction order, unless it is about to leave the device.
    VAMP_CHECK(node.run == kNoId || block.refs == 0, "referenced block {} could be evicted", id);
    VAMP_CHECK(node.run != kNoId || block.refs > 0 || node.leaving, "block {} can never be evicted",
               id);
  }
  VAMP_CHECK(leaving == leaving_, "{} blocks on their way out, counted {}", leaving, leaving_);
  VAMP_CHECK(referenced == referenced_, "{} blocks referenced, counted {}", referenced,
             referenced_);
  VAMP_CHECK(copies == copies_in_flight_ && demotions == demotions_in_flight_, "copies in flight");
  for (NodeId id = 0; id < index_.capacity(); ++id) {
    const PrefixNode& node = index_.at(id);
    if (!node.alive) continue;
    VAMP_CHECK(node.device == kNoId || pool_.at(node.device).node == id, "node {} and its block",
               id);
    VAMP_CHECK(node.host == kNoId || host_.at(node.host).node == id, "node {} and its host block",
               id);
    if (node.host == kNoId) {
      VAMP_CHECK(!node.host_ready, "node {} has no host block", id);
      continue;
    }
    const bool in_flight = host_copies.count(node.host) > 0;
    VAMP_CHECK(host_.at(node.host).listed == !in_flight, "host block {} is pinned without a copy",
               node.host);
    VAMP_CHECK(node.host_ready || (in_flight && pool_.at(node.device).copy == CopyKind::kDemote),
               "node {}'s copy never comes", id);
  }
}

}  // namespace vamp
