// In which order cached blocks would go: least recently used first, children before parents.
#pragma once

#include <cstdint>
#include <vector>

#include "core/prefix_index.h"
#include "core/request.h"

namespace vamp {

// Cached blocks that one request let go of together: `length` nodes of one chain, from `tail`
// upward. Blocks leave at the tail when evicted, at the top when a new request uses the prefix
// again.
struct EvictionRun {
  NodeId tail = kNoId;
  int length = 0;
  int clean = 0;  // of them, with a copy in the host tier
  SessionId session = 0;
  StepId last_used_step = 0;
  Micros last_used = 0;
  RunId colder = kNoId, hotter = kNoId;
  uint32_t generation = 0;  // tells reuses of a RunId apart
};

// A list of runs rather than of blocks: the policy is shown whole ends of prefixes without a walk
// over their blocks, and a chain's order within a run is its parent links. Every call is O(1) per
// block that enters or leaves. One thread.
class EvictionOrder {
 public:
  explicit EvictionOrder(PrefixIndex& index) : index_(index) {}

  int cached_blocks() const { return cached_; }
  RunId coldest() const { return coldest_; }
  const EvictionRun& at(RunId id) const { return runs_[id]; }
  // kNoId when the run has gone since `generation`.
  RunId resolve(uint64_t handle) const;
  uint64_t handle(RunId id) const {
    return uint64_t{runs_[id].generation} << 32 | static_cast<uint32_t>(id);
  }

  // `length` nodes from `tail` upward become cached, as the hottest run or the coldest.
  RunId add(NodeId tail, int length, SessionId session, StepId step, Micros now, bool coldest);
  void take_top(NodeId node);
  void take_tail(NodeId node);
  // A node's copy in the host tier has come (+1) or gone (-1).
  void count_clean(NodeId node, int change);

  void check_invariants() const;

 private:
  void drop_one(RunId id, NodeId node);
  void unlink(RunId id);

  PrefixIndex& index_;
  std::vector<EvictionRun> runs_;
  std::vector<RunId> unused_;
  RunId coldest_ = kNoId, hottest_ = kNoId;
  int cached_ = 0;
};

}  // namespace vamp
