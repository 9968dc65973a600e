// The host tier's blocks: ids, who holds them and in which order they would go.
#pragma once

#include <cstdint>
#include <vector>

#include "core/block_pool.h"

namespace vamp {

struct HostBlock {
  NodeId node = kNoId;  // published content; kNoId: free, or a swapped request's partial block
  HostBlockId colder = kNoId, hotter = kNoId;
  bool used = false;
  bool listed = false;     // in the LRU list: not pinned by a copy, not private
  bool abandoned = false;  // its copy is in flight, but nobody wants it any more
};

// Least recently used first. Holds no content and decides nothing; BlockManager does. One thread.
class HostTier {
 public:
  explicit HostTier(int capacity);

  int capacity() const { return static_cast<int>(blocks_.size()); }
  int free_blocks() const { return static_cast<int>(free_.size()); }
  int listed_blocks() const { return listed_; }
  HostBlock& at(HostBlockId id) { return blocks_[id]; }
  const HostBlock& at(HostBlockId id) const { return blocks_[id]; }

  HostBlockId allocate(NodeId node);  // needs a free block
  void free(HostBlockId id);          // takes it off the list
  HostBlockId coldest() const { return coldest_; }
  void list(HostBlockId id);    // may be dropped, as the hottest
  void unlist(HostBlockId id);  // pinned
  void touch(HostBlockId id) {
    unlist(id);
    list(id);
  }

  void check_invariants() const;

 private:
  std::vector<HostBlock> blocks_;
  std::vector<HostBlockId> free_;
  HostBlockId coldest_ = kNoId, hottest_ = kNoId;
  int listed_ = 0;
};

}  // namespace vamp
