#include "core/host_tier.h"

#include "base/error.h"

namespace vamp {

HostTier::HostTier(int capacity) : blocks_(capacity) {
  free_.reserve(capacity);
  for (HostBlockId id = capacity - 1; id >= 0; --id) free_.push_back(id);
}

HostBlockId HostTier::allocate(NodeId node) {
  VAMP_CHECK(!free_.empty(), "host allocation without a free block");
  const HostBlockId id = free_.back();
  free_.pop_back();
  blocks_[id] = HostBlock();
  blocks_[id].used = true;
  blocks_[id].node = node;
  return id;
}

void HostTier::free(HostBlockId id) {
  VAMP_CHECK(blocks_[id].used, "host block {} is freed twice", id);
  if (blocks_[id].listed) unlist(id);
  blocks_[id] = HostBlock();
  free_.push_back(id);
}

void HostTier::list(HostBlockId id) {
  HostBlock& block = blocks_[id];
  VAMP_CHECK(block.used && !block.listed, "host block {} is listed twice", id);
  block.listed = true;
  block.colder = hottest_;
  block.hotter = kNoId;
  (hottest_ == kNoId ? coldest_ : blocks_[hottest_].hotter) = id;
  hottest_ = id;
  ++listed_;
}

void HostTier::unlist(HostBlockId id) {
  HostBlock& block = blocks_[id];
  VAMP_CHECK(block.listed, "host block {} is not listed", id);
  (block.colder == kNoId ? coldest_ : blocks_[block.colder].hotter) = block.hotter;
  (block.hotter == kNoId ? hottest_ : blocks_[block.hotter].colder) = block.colder;
  block.listed = false;
  --listed_;
}

void HostTier::check_invariants() const {
  int used = 0, listed = 0;
  for (const HostBlock& block : blocks_) {
    used += block.used;
    listed += block.listed;
    VAMP_CHECK(block.used || !block.listed, "a free host block is listed");
  }
  VAMP_CHECK(used + free_blocks() == capacity(), "{} host blocks used, {} free of {}", used,
             free_blocks(), capacity());
  VAMP_CHECK(listed == listed_, "{} host blocks listed, counted {}", listed, listed_);
  HostBlockId previous = kNoId;
  for (HostBlockId id = coldest_; id != kNoId; previous = id, id = blocks_[id].hotter) {
    VAMP_CHECK(blocks_[id].listed && blocks_[id].colder == previous, "links of host block {}", id);
    --listed;
  }
  VAMP_CHECK(listed == 0 && previous == hottest_, "the host tier's list");
}

}  // namespace vamp
