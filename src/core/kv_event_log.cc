#include "core/kv_event_log.h"

#include <algorithm>

namespace vamp {

void KvEventLog::keep(NodeId id, std::span<const TokenId> tokens) {
  const size_t first = static_cast<size_t>(id) * block_tokens_;
  if (tokens_.size() < first + block_tokens_) tokens_.resize(first + block_tokens_);
  std::copy(tokens.begin(), tokens.end(), tokens_.begin() + static_cast<ptrdiff_t>(first));
}

void KvEventLog::add_stored(CacheTier tier, NodeId id) {
  const PrefixNode& node = index_.at(id);
  std::optional<PrefixKey> parent;
  if (node.parent != kNoId) parent = index_.at(node.parent).key;
  const bool goes_on = !events_.empty() && events_.back().kind == KvEvent::Kind::kStored &&
                       events_.back().tier == tier && parent == events_.back().keys.back();
  if (!goes_on) {
    events_.push_back(
        {.kind = KvEvent::Kind::kStored, .tier = tier, .keys = {}, .parent = parent, .tokens = {}});
  }
  KvEvent& event = events_.back();
  const auto first = tokens_.begin() + static_cast<ptrdiff_t>(id * block_tokens_);
  event.keys.push_back(node.key);
  event.tokens.insert(event.tokens.end(), first, first + static_cast<ptrdiff_t>(block_tokens_));
}

void KvEventLog::add_removed(CacheTier tier, NodeId id) {
  const bool goes_on = !events_.empty() && events_.back().kind == KvEvent::Kind::kRemoved &&
                       events_.back().tier == tier;
  if (!goes_on) {
    events_.push_back(
        {.kind = KvEvent::Kind::kRemoved, .tier = tier, .keys = {}, .parent = {}, .tokens = {}});
  }
  events_.back().keys.push_back(index_.at(id).key);
}

}  // namespace vamp
