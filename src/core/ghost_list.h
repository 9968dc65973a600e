// What was dropped, by whose decision: so that a decision learns what it cost when the content is
// asked for again.
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/prefix_key.h"

namespace vamp {

struct Ghost {
  uint64_t decision = 0;  // 0: the host tier was full and dropped its coldest
  Micros dropped = 0;
};

// Remembers the latest `capacity` keys. O(1) a call. One thread.
class GhostList {
 public:
  explicit GhostList(int capacity) : ring_(capacity) {}

  bool empty() const { return by_key_.empty(); }
  void remember(const PrefixKey& key, const Ghost& ghost);
  // Forgets it: one loss is charged once.
  std::optional<Ghost> take(const PrefixKey& key);

 private:
  struct Entry {
    Ghost ghost;
    uint64_t sequence = 0;
  };
  struct Place {
    PrefixKey key;
    uint64_t sequence = 0;  // 0: never used
  };
  std::vector<Place> ring_;
  uint64_t next_ = 1;
  boost::unordered_flat_map<PrefixKey, Entry, PrefixKeyHash> by_key_;
};

}  // namespace vamp
