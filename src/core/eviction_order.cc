#include "core/eviction_order.h"

#include "base/error.h"

namespace vamp {

RunId EvictionOrder::resolve(uint64_t handle) const {
  const auto id = static_cast<uint32_t>(handle);
  if (id >= runs_.size() || runs_[id].length == 0) return kNoId;
  return runs_[id].generation == handle >> 32 ? static_cast<RunId>(id) : kNoId;
}

RunId EvictionOrder::add(NodeId tail, int length, SessionId session, StepId step, Micros now,
                         bool coldest) {
  RunId id;
  if (unused_.empty()) {
    id = static_cast<RunId>(runs_.size());
    runs_.emplace_back();
  } else {
    id = unused_.back();
    unused_.pop_back();
  }
  EvictionRun& run = runs_[id];
  const uint32_t generation = run.generation + 1;
  run = {.tail = tail,
         .length = length,
         .session = session,
         .last_used_step = step,
         .last_used = now,
         .generation = generation};
  NodeId node = tail;
  for (int i = 0; i < length; ++i) {
    PrefixNode& entry = index_.at(node);
    VAMP_CHECK(entry.run == kNoId, "node {} is cached twice", node);
    entry.run = id;
    entry.session = session;
    run.clean += entry.host_ready;
    node = entry.parent;
  }
  cached_ += length;
  RunId& end = coldest ? coldest_ : hottest_;
  if (end == kNoId) {
    coldest_ = hottest_ = id;
  } else if (coldest) {
    run.hotter = end;
    runs_[end].colder = id;
    end = id;
  } else {
    run.colder = end;
    runs_[end].hotter = id;
    end = id;
  }
  return id;
}

void EvictionOrder::take_top(NodeId node) {
  const PrefixNode& entry = index_.at(node);
  const EvictionRun& run = runs_[entry.run];
  VAMP_CHECK(index_.at(run.tail).depth - run.length + 1 == entry.depth,
             "node {} is not its run's top", node);
  drop_one(entry.run, node);
}

void EvictionOrder::take_tail(NodeId node) {
  EvictionRun& run = runs_[index_.at(node).run];
  VAMP_CHECK(run.tail == node, "node {} is not its run's tail", node);
  run.tail = index_.at(node).parent;
  drop_one(index_.at(node).run, node);
}

void EvictionOrder::drop_one(RunId id, NodeId node) {
  PrefixNode& entry = index_.at(node);
  EvictionRun& run = runs_[id];
  run.clean -= entry.host_ready;
  entry.run = kNoId;
  --cached_;
  if (--run.length == 0) unlink(id);
}

void EvictionOrder::unlink(RunId id) {
  const EvictionRun& run = runs_[id];
  (run.colder == kNoId ? coldest_ : runs_[run.colder].hotter) = run.hotter;
  (run.hotter == kNoId ? hottest_ : runs_[run.hotter].colder) = run.colder;
  unused_.push_back(id);
}

void EvictionOrder::count_clean(NodeId node, int change) {
  const RunId run = index_.at(node).run;
  if (run != kNoId) runs_[run].clean += change;
}

void EvictionOrder::check_invariants() const {
  int cached = 0;
  RunId previous = kNoId;
  for (RunId id = coldest_; id != kNoId; previous = id, id = runs_[id].hotter) {
    const EvictionRun& run = runs_[id];
    VAMP_CHECK(run.colder == previous && run.length > 0, "links of run {}", id);
    NodeId node = run.tail;
    int clean = 0;
    for (int i = 0; i < run.length; ++i) {
      VAMP_CHECK(node != kNoId && index_.at(node).alive && index_.at(node).run == id,
                 "run {}'s nodes", id);
      clean += index_.at(node).host_ready;
      node = index_.at(node).parent;
    }
    VAMP_CHECK(clean == run.clean, "run {} counts {} clean blocks of {}", id, run.clean, clean);
    cached += run.length;
  }
  VAMP_CHECK(previous == hottest_, "the hottest run");
  VAMP_CHECK(cached == cached_, "{} cached blocks in runs, counted {}", cached, cached_);
  int with_run = 0;
  for (NodeId id = 0; id < index_.capacity(); ++id) {
    with_run += index_.at(id).alive && index_.at(id).run != kNoId;
  }
  VAMP_CHECK(with_run == cached, "{} nodes say that they are cached, {} are listed", with_run,
             cached);
}

}  // namespace vamp
