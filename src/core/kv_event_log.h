// The prefix cache's events since somebody last took them.
#pragma once

#include <span>
#include <utility>
#include <vector>

#include "core/kv_event.h"
#include "core/prefix_index.h"

namespace vamp {

// Owns the events that nobody has taken yet and, so that every one of them can say what a block
// holds, the tokens of each node. Off, it owns nothing and a call is a comparison. One thread.
class KvEventLog {
 public:
  // `index` must outlive this; nodes are looked up in it when they are told of.
  KvEventLog(const PrefixIndex& index, int block_tokens, bool on)
      : index_(index), block_tokens_(static_cast<size_t>(block_tokens)), on_(on) {}

  // The content of a new node.
  void name(NodeId id, std::span<const TokenId> tokens) {
    if (on_) keep(id, tokens);
  }
  void stored(CacheTier tier, NodeId id) {
    if (on_) add_stored(tier, id);
  }
  void removed(CacheTier tier, NodeId id) {
    if (on_) add_removed(tier, id);
  }
  void cleared() {
    if (on_) events_.emplace_back();
  }

  bool empty() const { return events_.empty(); }
  // In the order in which it happened. What follows on each other is one event.
  std::vector<KvEvent> take() { return std::exchange(events_, {}); }

 private:
  void keep(NodeId id, std::span<const TokenId> tokens);
  void add_stored(CacheTier tier, NodeId id);
  void add_removed(CacheTier tier, NodeId id);

  const PrefixIndex& index_;
  const size_t block_tokens_;
  const bool on_;
  std::vector<KvEvent> events_;
  std::vector<TokenId> tokens_;  // [node * block_tokens]
};

}  // namespace vamp
