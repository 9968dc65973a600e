#include "core/ghost_list.h"

namespace vamp {

void GhostList::remember(const PrefixKey& key, const Ghost& ghost) {
  if (ring_.empty()) return;
  Place& place = ring_[next_ % ring_.size()];
  if (place.sequence != 0) {
    const auto old = by_key_.find(place.key);
    if (old != by_key_.end() && old->second.sequence == place.sequence) by_key_.erase(old);
  }
  place = {key, next_};
  by_key_[key] = {ghost, next_};
  ++next_;
}

std::optional<Ghost> GhostList::take(const PrefixKey& key) {
  const auto it = by_key_.find(key);
  if (it == by_key_.end()) return std::nullopt;
  const Ghost ghost = it->second.ghost;
  by_key_.erase(it);
  return ghost;
}

}  // namespace vamp
