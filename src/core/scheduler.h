// The scheduler: a pure state machine from requests and results to plans.
//
// It owns every request, the block manager and the reclaim policy. One thread uses it. It never
// holds a clock, thread, socket or device pointer: time comes as an argument, work goes out as
// StepPlan.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/kv_event.h"
#include "core/reclaim_policy.h"
#include "core/request.h"
#include "core/request_check.h"
#include "core/step_plan.h"
#include "model/memory_layout.h"

namespace vamp {

enum class SchedulingPolicy { kFcfs, kPriority };
enum class AdmissionRule {
  kWholePrompt,  // a request enters when its whole prompt fits (vLLM since March 2026)
  kFirstChunk,   // when its first chunk fits (vLLM 0.15.1, the paper's baseline)
};

struct SchedulerConfig {
  int max_num_seqs = 128;             // running requests at most
  int max_num_batched_tokens = 8192;  // tokens of one step
  int max_model_len = 0;              // prompt + output of one request; 0: what the pool can hold
  int max_waiting = 0;                // refuse beyond that many waiting requests; 0: no limit
  bool enable_prefix_caching = true;
  SchedulingPolicy scheduling = SchedulingPolicy::kFcfs;
  AdmissionRule admission = AdmissionRule::kWholePrompt;
  int host_blocks = 0;                       // capacity of the host tier (--kv-offloading-size)
  bool two_way_boundary = true;              // false: the paper's, the boundary only rises
  StagingMode staging = StagingMode::kAuto;  // how given-up experts are brought in
  int max_groups_out = -1;     // the boundary never rises beyond; -1: the layout's maximum
  int hit_rate_window = 1000;  // requests
  // A waiting request that does not fit lets others pass, at most so many and for so long after it
  // first did not fit; then nothing behind it enters before it does.
  int max_overtakes = 8;
  Micros max_overtaken_for = 2 * kSecond;
  // An attempt to let a request in costs as much as its prefix is long. While no block has come
  // free the answer stays the same, but for prices that move: it is asked for again after this.
  Micros admission_retry = 0.1 * kSecond;
  int max_admission_attempts = 4;  // waiting requests that do not fit, looked at in one step
  Micros boundary_backoff = 10 * kSecond;  // no boundary moves for so long after one has failed
  // After so many failures in a row the boundary counts as immovable for `boundary_cooling`; then
  // it may be tried once more.
  int max_boundary_failures = 3;
  Micros boundary_cooling = 600 * kSecond;
  Micros hold_recheck = 50e3;   // a session held back by the policy is asked for again after
  int max_candidates = 32;      // runs of cached blocks shown to the policy
  int min_segment_blocks = 32;  // a candidate is cut to so many blocks, or to the gap if larger
  int max_ghosts = 1 << 16;     // keys of dropped blocks remembered, to see what a drop cost
  bool kv_events = false;       // tell the listener what the prefix cache comes to hold and loses
  std::vector<TokenId> eos_token_ids;  // the model's
  RequestLimits limits;                // the model's vocabulary
};

struct SchedulerStats {
  int running = 0, waiting = 0;
  int free_blocks = 0, cached_blocks = 0, referenced_blocks = 0, total_blocks = 0;
  int host_used_blocks = 0, host_total_blocks = 0;
  int groups_out = 0;
  double hit_rate = 0;                                               // over the window
  uint64_t queried_tokens = 0, hit_tokens = 0, host_hit_tokens = 0;  // since start
  // Prompt tokens computed again because they had been dropped: by a decision, or by the host tier
  // when it was full.
  uint64_t recomputed_tokens = 0, host_recomputed_tokens = 0;
  uint64_t preemptions = 0, boundary_moves = 0, decisions = 0, failed_steps = 0;
};

// Told as it happens; every pointer may be null. Called from schedule() and update().
struct SchedulerListener {
  std::function<void(const DecisionRecord&)> on_decision;         // when made
  std::function<void(const DecisionRecord&)> on_decision_result;  // when what came of it is known
  std::function<void(const RequestStats&)> on_finished;
  // With SchedulerConfig::kv_events, since the last call. What leaves memory is told before the
  // plan that reuses or unmaps it is returned.
  std::function<void(const std::vector<KvEvent>&)> on_kv_events;
};

class BlockManager;

class Scheduler {
 public:
  // `layout` must outlive the scheduler. Starts at layout.min_groups_out.
  Scheduler(const SchedulerConfig& config, const MemoryLayout& layout,
            std::unique_ptr<ReclaimPolicy> policy, SchedulerListener listener = {});
  ~Scheduler();

  // Takes the request in, or returns why it never can run (too long, empty, queue full, ...).
  std::optional<std::string> add(RequestInput request, Micros now);
  // At any moment; the request's kFinished event comes with the next update() or take_events().
  void cancel(RequestId id, Micros now);

  // The next step's plan, empty if there is nothing to do now. At most one plan may be unanswered
  // when this is called.
  StepPlan schedule(Micros now);
  // Takes the oldest unanswered plan's result in.
  void update(const StepResult& result, Micros now);
  // Events since the last call, in order.
  std::vector<RequestEvent> take_events();

  // No request waits or runs and no copy is in flight.
  bool idle() const;
  // Earliest time at which schedule() may do more than it can now without a new request or result
  // (a held session, a deadline, a hysteresis timer); infinity if never.
  Micros next_wakeup() const;
  SchedulerStats stats() const;
  // Drops every cached block on both tiers that no running request holds.
  void reset_prefix_cache();
  // What the KV events so far add up to. O(blocks).
  std::vector<PrefixKey> cached_keys(CacheTier tier) const;
  // Throws InvariantError when refcounts, hash table, LRU, host tier and tables disagree.
  // O(blocks).
  void check_invariants() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vamp
