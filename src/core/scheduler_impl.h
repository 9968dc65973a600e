// The scheduler's insides, shared by the files that carry out its parts:
//   scheduler.cc            schedule(): the way of one step
//   scheduler_requests.cc   requests come, finish, are cancelled
//   scheduler_admission.cc  waiting requests enter
//   scheduler_room.cc       blocks fall short: ask the policy, carry its decision out, preempt
//   scheduler_results.cc    results, and steps that were not carried out
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <deque>
#include <limits>
#include <memory>
#include <queue>
#include <set>
#include <vector>

#include "core/block_manager.h"
#include "core/decision_log.h"
#include "core/hit_rate_window.h"
#include "core/pool_boundary.h"
#include "core/request_state.h"
#include "core/scheduler.h"

namespace vamp {

struct Scheduler::Impl {
  // Who comes first: also who is never preempted for those behind.
  struct Before {
    SchedulingPolicy policy;
    bool operator()(const RequestState* a, const RequestState* b) const {
      if (policy == SchedulingPolicy::kPriority && a->input.priority != b->input.priority) {
        return a->input.priority < b->input.priority;
      }
      if (a->input.arrival != b->input.arrival) return a->input.arrival < b->input.arrival;
      return a->serial < b->serial;
    }
  };
  // A request as long as it is the same one.
  struct Reference {
    RequestState* request = nullptr;
    uint64_t serial = 0;
    bool alive() const {
      return request->serial == serial && request->status != RequestStatus::kUnused;
    }
  };
  struct Row {
    Reference who;
    RequestSlot slot = 0;
    bool sample = false;
    int first = 0, scored = 0;  // as in BatchEntry
  };
  // A plan whose result is not in yet.
  struct SentPlan {
    StepId step = 0;
    bool undone = false;  // an earlier one failed: neither was this carried out
    std::vector<Row> rows;
    std::vector<BlockMove> moves;
    std::vector<BlockCopy> demotes, promotes;
    std::optional<BoundaryMove> boundary;
    int groups_before = 0;
    StepObservation work;
  };
  struct Deadline {
    Micros time = 0;
    Reference who;
    bool operator<(const Deadline& other) const { return time > other.time; }  // earliest on top
  };
  struct Edit {
    Reference who;
    int index = 0;
  };
  enum class Admission { kAdmitted, kNotYet, kNoRoom };

  Impl(const SchedulerConfig& config, const MemoryLayout& layout,
       std::unique_ptr<ReclaimPolicy> policy, SchedulerListener listener);

  // scheduler.cc
  StepPlan schedule(Micros now);
  void run_background();
  void move_blocks();
  void schedule_running();
  bool arrived(RequestState& request);
  int most_tokens(const RequestState& request, int count) const;
  void add_row(RequestState& request, int count);
  void finish_plan();
  void tell_kv_events();
  int blocks_for(int tokens) const { return (tokens + block_tokens - 1) / block_tokens; }

  // scheduler_requests.cc
  std::optional<std::string> add(RequestInput input, Micros now);
  std::optional<std::string> refuse(const RequestInput& input) const;
  void add_end_tokens(SamplingParams& sampling) const;
  void name_blocks(RequestState& request);
  void publish_full(RequestState& request, StepId written, bool may_adopt, bool leaving = false);
  void finish(RequestState& request, FinishReason reason, std::string error = {});
  void leave_running(RequestState& request);
  void drop_expired();

  // scheduler_admission.cc
  void admit_waiting();
  Admission try_admit(RequestState& request);
  bool will_be_computed(const RequestState& request, int block) const;
  bool within_admission_limit(int needed) const;
  bool worth_another_attempt(const RequestState& request, int matched) const;
  void enter(RequestState& request, const PrefixMatch& match, int start);
  void charge_ghosts(RequestState& request, int matched_blocks);
  bool blocks_others(const RequestState& request) const;

  // scheduler_room.cc
  bool make_room(int needed, RequestState& request, bool admission);
  void end_wait(RequestState& request);
  void gather(int needed, const RequestState& request, bool admission, ReclaimInputs& inputs);
  int carry_out(const ReclaimInputs& inputs, const ReclaimDecision& decision,
                const RequestState& request, uint64_t id);
  int force_room(int needed, const RequestState& request, bool admission, uint64_t id);
  RequestState* victim(RequestId id, const RequestState& behind) const;
  void preempt(RequestState& request, bool swap);
  int free_soon() const { return blocks.free_blocks() + blocks.leaving_blocks(); }
  bool boundary_may_move() const { return now >= boundary_barred_until; }
  bool boundary_immovable() const {
    return boundary_failures >= config.max_boundary_failures && !boundary_may_move();
  }
  std::optional<std::string> out_of_reach(int64_t tokens) const;

  // scheduler_results.cc
  void update(const StepResult& result, Micros now);
  void take_samples(const SentPlan& sent, const StepResult& result);
  void append(RequestState& request, const SampledToken& sample);
  void append_score(RequestState& request, int position, const SampledToken& score);
  void observe(const SentPlan& sent, const StepResult& result);
  void undo_plans_since(const StepResult& failed);
  void bar_boundary(const StepResult& failed);
  void requeue(RequestState& request);

  // stats and checks, scheduler.cc
  SchedulerStats stats() const;
  void check_invariants() const;

  const SchedulerConfig config;
  const MemoryLayout& layout;
  const int block_tokens;
  std::unique_ptr<ReclaimPolicy> policy;
  SchedulerListener listener;

  BlockManager blocks;
  PoolBoundary boundary;
  DecisionLog decisions;
  HitRateWindow hit_rate;

  std::vector<std::unique_ptr<RequestState>> storage;
  std::vector<RequestState*> unused;
  boost::unordered_flat_map<RequestId, RequestState*> by_id;
  std::set<RequestState*, Before> waiting;
  std::vector<RequestState*> running;  // in the order of Before
  std::vector<RequestSlot> free_slots;
  std::priority_queue<Deadline> deadlines;
  uint64_t next_serial = 1;

  // The step under construction.
  Micros now = 0;
  StepPlan plan;
  SentPlan sent;
  int budget = 0;                     // tokens left
  int extra_rows = 0;                 // of logits, beyond one for each running request
  bool preempted_any = false;         // then nobody enters in this step
  int min_remaining = -1;             // of gather(), computed once a step; -1: not yet
  bool held_back = false;             // a session was, by the policy
  DecisionRecord record;              // of make_room(); its buffers are used again
  std::vector<RequestState*> passed;  // waiting requests that did not fit in this step

  StepId next_step = 1;
  std::deque<SentPlan> in_flight;
  std::vector<SentPlan> spare;        // their buffers are used again
  std::vector<RequestSlot> releases;  // for the next plan
  std::vector<Edit> edits;            // table entries that changed; for the next plan
  bool reset_executor = false;
  Micros boundary_barred_until = 0;
  int boundary_failures = 0;     // in a row
  std::string boundary_failure;  // why, the last time
  std::vector<RequestEvent> events;
  std::vector<int> row_of_slot;

  uint64_t queried_tokens = 0, hit_tokens = 0, host_hit_tokens = 0;
  uint64_t recomputed_tokens = 0, host_recomputed_tokens = 0;
  uint64_t preemptions = 0, boundary_moves = 0, failed_steps = 0;
};

}  // namespace vamp
