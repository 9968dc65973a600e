// The loop: requests in, plans to the executor, results back, tokens out.
#pragma once

#include <atomic>
#include <deque>
#include <limits>
#include <memory>
#include <unordered_map>
#include <variant>

#include "base/bounded_queue.h"
#include "base/clock.h"
#include "core/executor.h"
#include "core/scheduler.h"
#include "core/step_stats.h"

namespace vamp {

struct EngineConfig {
  SchedulerConfig scheduler;
  StagingMode staging = StagingMode::kAuto;  // how given-up experts are brought in
  size_t inbox_capacity = 4096;              // submissions and cancellations not yet taken in
  bool check_invariants_when_idle = false;   // the scheduler's full self-check, O(blocks)
};

// Told from the engine's thread, as it happens.
class EngineListener {
 public:
  virtual ~EngineListener() = default;
  virtual void on_token(const RequestEvent& /*event*/) {}
  virtual void on_prompt_token(const RequestEvent& /*event*/) {}  // SamplingParams::prompt_logprobs
  // `event.reason` and `event.error` say how it ended; a refused request ends with kError.
  virtual void on_finished(const RequestEvent& /*event*/, const RequestStats&) {}
  virtual void on_step(const StepStats&) {}
  virtual void on_decision(const DecisionRecord&) {}
  virtual void on_decision_result(const DecisionRecord&) {}  // when what came of it is known
  // With SchedulerConfig::kv_events; before the executor gets the plan that they belong to.
  virtual void on_kv_events(const std::vector<KvEvent>&) {}
  virtual void on_delivered() {}  // once a turn of the loop, after all of the above
};

// Owns the scheduler. submit(), cancel() and stop() may be called from any thread; everything else
// from the one thread that steps. Plan n+1 is made and handed out before the result of n is waited
// for, so a device never waits for the host. Under a VirtualClock the same submissions give the
// same run, to the bit. An Error or InvariantError from the executor or scheduler leaves the engine
// unusable.
class Engine {
 public:
  // All references must outlive the engine.
  Engine(const EngineConfig& config, const MemoryLayout& layout,
         std::unique_ptr<ReclaimPolicy> policy, Executor& executor, Clock& clock,
         EngineListener& listener);

  // False when the inbox is full. What becomes of the request comes through the listener.
  [[nodiscard]] bool submit(RequestInput request) { return inbox_.try_push(std::move(request)); }
  // False when the inbox is full: try again.
  [[nodiscard]] bool cancel(RequestId id) { return inbox_.try_push(Cancel{id}); }
  [[nodiscard]] bool reset_prefix_cache() { return inbox_.try_push(ResetPrefixCache{}); }

  // One turn of the loop. False when there was nothing to plan and nothing to wait for.
  bool step();
  // Earliest time at which step() may have work again without a submission; infinity if never.
  Micros next_wakeup() const { return scheduler_.next_wakeup(); }

  // Steps until stop(); sleeps while idle. With a real clock only.
  void run();
  void stop();

  SchedulerStats stats() const { return scheduler_.stats(); }
  void check_invariants() const { scheduler_.check_invariants(); }

 private:
  struct Cancel {
    RequestId id = 0;
  };
  struct ResetPrefixCache {};
  using Message = std::variant<RequestInput, Cancel, ResetPrefixCache>;

  void drain_inbox();
  void take_in(RequestInput request);
  void submit_plan(StepPlan plan);
  void take_result();
  void deliver_events();
  SchedulerListener scheduler_listener();

  const EngineConfig config_;
  const MemoryLayout& layout_;
  Executor& executor_;
  Clock& clock_;
  EngineListener& listener_;
  BoundedQueue<Message> inbox_;
  std::unordered_map<RequestId, RequestStats> finished_;  // until their event is delivered
  Scheduler scheduler_;
  std::deque<StepStats> in_flight_;  // of plans without a result
  std::atomic<bool> stopping_ = false;
};

}  // namespace vamp
