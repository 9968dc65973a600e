// Where the value judgement is made: KV blocks are needed and too few are free. Which way out is
// the cheapest? Three policies answer, differing in nothing else: StaticPolicy (evict, then
// preempt), ValueAwarePolicy (the paper's formulas and constants) and PricedPolicy (measured
// prices).
//
// A policy sees plain numbers and returns plain numbers. It holds estimators, fed by observe(), but
// no block, request or device. The scheduler gathers ReclaimInputs, carries the decision out and
// asks again if the allocation still falls short.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/request.h"
#include "core/step_plan.h"
#include "model/memory_layout.h"

namespace vamp {

enum class ActionKind {
  kDrop,           // evict cached blocks; their content is lost (or lives on in the host tier)
  kDemote,         // evict cached blocks, content copied to the host tier
  kGiveUpExperts,  // raise the boundary
  kGiveUpAndDrop,  // the paper's C_b: part expansion, part eviction
  kPreemptRecompute,
  kPreemptSwap,  // the victim's blocks go to the host tier
  kWait,         // leave the request waiting
};
inline constexpr int kNumActionKinds = 7;
const char* action_name(ActionKind kind);

// A run of cached blocks of one chain that can go together: only the end of a prefix can go,
// children before parents. In LRU order of its most recently used block.
struct EvictionCandidate {
  int blocks = 0;
  int tokens = 0;         // in those blocks
  int prefix_tokens = 0;  // before them in the chain
  uint64_t last_used_step = 0;
  Micros last_used = 0;
  SessionId session = 0;
  int clean_blocks = 0;  // of them, with a copy in the host tier: dropping these loses nothing
  uint64_t handle = 0;   // the cache's own name for it; goes back in the decision
};

struct PreemptionCandidate {
  RequestId id = 0;
  int context_tokens = 0;   // computed so far
  int partial_tokens = 0;   // in its last, partly filled block; 0: that block is full
  int uncached_blocks = 0;  // what a preemption by recompute frees at once
  int total_blocks = 0;     // what a preemption by swap frees, those shared with others excluded
  int priority = 0;
  Micros arrival = 0;
};

struct BoundaryState {
  int groups_out = 0, min_groups_out = 0, max_groups_out = 0;
  int increment_groups = 4;
  int shards_per_group = 1;
  int experts_per_layer = 0;  // E: local shards per layer and rank
  size_t group_bytes = 0, block_bytes = 0;
  bool can_move = true;  // false: a move is in flight, or moving has failed
  // Blocks gained by giving up k further increments, k = 1, 2, ... (the last may be partial).
  std::vector<int> blocks_gained;
};

struct ReclaimInputs {
  uint64_t decision = 0;  // DecisionRecord::id that this call will get
  StepId step = 0;
  Micros now = 0;
  // Blocks needed beyond the uncached free ones and those whose copy to the host frees them soon.
  int gap_blocks = 0;
  int needed_blocks = 0;   // the whole allocation
  bool admission = false;  // for a waiting request (then waiting is allowed), not a running one
  RequestId request = 0;
  int request_uncached_tokens = 0;  // to prefill, when admission
  int block_tokens = 16;

  int free_blocks = 0, cached_blocks = 0, total_blocks = 0;
  int host_free_blocks = 0, host_total_blocks = 0;
  // Coldest first; all together may cover only part of cached_blocks (a bounded scan).
  std::vector<EvictionCandidate> evictable;
  // The scheduler's next victim first, and those after it. Empty: nobody may be preempted for this.
  std::vector<PreemptionCandidate> victims;
  BoundaryState boundary;

  int running = 0, waiting = 0;
  int min_remaining_tokens = 0;  // smallest remaining decode budget among running requests
  int num_behind = 0;            // waiting requests behind this one
  double hit_rate = 0;           // prefix-cache hit rate over the recent requests, 0 ... 1
};

// What an action would cost, in microseconds of future work. Infinite: not feasible.
struct ActionCost {
  ActionKind kind = ActionKind::kDrop;
  double cost = 0;
};

struct ReclaimDecision {
  ActionKind kind = ActionKind::kDrop;  // the action's name in records and metrics
  // What to do. Several may be set: a plan may combine them.
  // How many blocks to drop: from the ends of the candidates in `drop`, in that order; in plain LRU
  // order when `drop` is empty or does not suffice.
  int drop_blocks = 0;
  std::vector<uint64_t> drop, demote;  // handles of candidates; demoted ones go whole
  int give_up_groups = 0;
  std::vector<RequestId> preempt_recompute, preempt_swap;
  bool wait = false;

  // Nothing happens: the request waits.
  bool only_waits() const {
    return wait && drop_blocks == 0 && drop.empty() && demote.empty() && give_up_groups == 0;
  }

  std::vector<ActionCost> costs;  // of every action considered, always filled
  std::string note;               // what the numbers rest on, for the record
};

// Reverse and preparatory actions, asked for once a step.
struct BackgroundInputs {
  StepId step = 0;
  Micros now = 0;
  int free_blocks = 0, cached_blocks = 0, total_blocks = 0, waiting = 0, running = 0;
  int host_free_blocks = 0, host_total_blocks = 0;
  bool demote_link_idle = true;
  // Cached runs with blocks that the host tier lacks: whole, coldest first, bounded. Empty unless
  // demote_link_idle.
  std::vector<EvictionCandidate> dirty;
  BoundaryState boundary;
  std::vector<int> blocks_lost;  // by restoring k increments, k = 1, 2, ...
};
struct BackgroundDecision {
  std::vector<uint64_t> write_back;  // copy to the host tier now, stay cached on the device
  int restore_groups = 0;            // lower the boundary by so many
};

// What the policy learns from.
struct StepObservation {
  StepId step = 0;
  Micros now = 0;       // when its result was taken in
  Micros duration = 0;  // of the step on the device
  int decode_requests = 0;
  int prefill_tokens = 0;
  double prefill_context = 0;  // sum over prefill chunks of tokens x mean context before them
  double context_tokens = 0;   // read by decodes
  int groups_out = 0;
  StagingStats staging;
  size_t demoted_bytes = 0, promoted_bytes = 0;
  Micros demote_us = 0, promote_us = 0;
  const std::vector<uint32_t>* expert_counts = nullptr;  // null in most steps
  int running = 0, waiting = 0;
};

class ReclaimPolicy {
 public:
  virtual ~ReclaimPolicy() = default;
  virtual const char* name() const = 0;

  virtual ReclaimDecision choose(const ReclaimInputs& inputs) = 0;
  virtual BackgroundDecision background(const BackgroundInputs&) { return {}; }
  // May a session that holds nothing yet come in now? Asked for the head of the queue.
  virtual bool hold_new_session(SessionId, int /*prompt_tokens*/, Micros /*now*/) { return false; }
  // Blocks that running requests may hold together after a waiting one has entered, if the policy
  // wants what lies beyond back for the experts. Does not bind a request that would run alone.
  virtual std::optional<int> admission_limit(int /*groups_out*/, Micros /*now*/) { return {}; }

  virtual void observe(const StepObservation&) {}
  // A turn arrived (its request was added), and when it finished. Session: never 0, see SessionId.
  virtual void on_turn_started(SessionId, int /*prompt_tokens*/, Micros /*now*/) {}
  // For the first time; `cached_tokens` of its prompt were found in either tier.
  virtual void on_turn_scheduled(SessionId, int /*prompt_tokens*/, int /*cached_tokens*/,
                                 Micros /*now*/) {}
  virtual void on_turn_ended(SessionId, const RequestStats&, const ReuseHint&, Micros /*now*/) {}
  virtual void on_rescheduled(Micros /*preempted*/, Micros /*now*/) {}  // t_queue's estimator
  // A dropped segment was asked for again `since` later; `recomputed` tokens were lost by dropping
  // it. Decision 0: nobody's, the host tier was full and dropped its coldest.
  virtual void on_evicted_reused(uint64_t /*decision*/, int /*recomputed*/, Micros /*since*/) {}
};

// A decision with what it rested on and what came of it.
struct DecisionRecord {
  uint64_t id = 0;
  ReclaimInputs inputs;  // candidates included, bounded
  ReclaimDecision decision;
  int blocks_won = 0;  // at once, or when copies that it started have ended
  // A request that waits gets the same answer step after step: one record, that many times, until.
  int repeats = 1;
  Micros until = 0;
  // Afterwards: prompt tokens asked for again that this decision had dropped, and when first.
  int reused_tokens = 0;
  Micros first_reuse = -1;
};

}  // namespace vamp
