// PricedPolicy, the default. Every way to make room has a price in request-microseconds (delay
// summed over the requests that it delays), from measured rates: dropping cached blocks, dropping
// those whose copy the host holds, demoting, giving up expert groups, preempting by recompute or by
// swap, waiting. The cheapest plan that is feasible wins. docs/policy.md has the formulas and what
// each rests on.
//
// Experts are priced in two parts: up to the boundary that BoundaryPlanner finds best they are free
// (they pay for themselves in engine time), beyond it they cost what they delay every step.
#pragma once

#include "core/boundary_planner.h"
#include "core/reclaim_policy.h"
#include "core/session_forecast.h"

namespace vamp {

struct PricedConfig {
  BoundaryPlanner::Config planner;
  bool host_tier = true;                 // may demote, write back ahead and swap
  bool experts = true;                   // may give up expert groups
  bool queue_aware_reuse = true;         // reuse from turn gaps and the queue; false: plain LRU
  Micros map_us = 74;                    // moving one group's handle
  Micros horizon = 30 * kSecond;         // how long groups beyond the plan stay out, until measured
  Micros requeue = 100e3;                // preempted → running again, before it is measured
  size_t write_back_bytes = 256 * kMiB;  // written back ahead in one batch
  Micros restore_after = kSecond;        // pressure gone for so long ...
  int restore_after_steps = 64;          // ... or for so many steps, whichever comes first
};

// Owns the estimators. One thread; reads no clock.
class PricedPolicy final : public ReclaimPolicy {
 public:
  // `layout` must outlive the policy.
  PricedPolicy(const MemoryLayout& layout, const PricedConfig& config, const char* name = "priced");
  const char* name() const override { return name_; }

  ReclaimDecision choose(const ReclaimInputs& inputs) override;
  BackgroundDecision background(const BackgroundInputs& inputs) override;
  std::optional<int> admission_limit(int groups_out, Micros now) override;
  void observe(const StepObservation& step) override { planner_.observe(step); }
  void on_turn_started(SessionId session, int, Micros now) override {
    sessions_.turn_started(session, now);
  }
  void on_turn_scheduled(SessionId session, int prompt_tokens, int cached_tokens, Micros) override {
    planner_.turn_scheduled(session, prompt_tokens, cached_tokens);
  }
  void on_turn_ended(SessionId session, const RequestStats& stats, const ReuseHint& hint,
                     Micros now) override;
  void on_rescheduled(Micros preempted, Micros now) override { requeue_.add(now - preempted); }

  const BoundaryPlanner& planner() const { return planner_; }

 private:
  struct Market;   // rates and loads that prices of one moment rest on
  struct Segment;  // an eviction candidate with its price
  struct Plan;     // a way to cover the gap
  Market market(Micros now, int running, int waiting, int total_blocks, int block_tokens,
                size_t block_bytes) const;
  Segment price_segment(const EvictionCandidate& candidate, const Market& market) const;
  std::vector<Segment> price_segments(const std::vector<EvictionCandidate>& candidates,
                                      const Market& market) const;
  // Groups, then evictions, then victims until `gap` blocks are covered.
  Plan make_plan(const ReclaimInputs& inputs, const Market& market,
                 const std::vector<Segment>& segments, int increments, int planned_groups) const;
  void add_victims(const ReclaimInputs& inputs, const Market& market, int missing,
                   Plan& plan) const;
  double price_of_groups(const ReclaimInputs& inputs, const Market& market, int groups,
                         int planned_groups) const;
  // X of the engine time that groups_out instead of `instead` would take while they stay out.
  double price_of_staging(const Market& market, int running, int groups_out, int instead) const;
  void watch_excursion(int groups_out, int planned_groups, Micros now);
  Micros expected_stay(Micros now) const;
  int planned_groups(Micros now);
  int restorable_by_price(const BackgroundInputs& inputs, int surplus) const;

  const MemoryLayout& layout_;
  PricedConfig config_;
  const char* name_;
  BoundaryPlanner planner_;
  SessionForecast sessions_;
  Ewma requeue_;
  Ewma stay_;                  // how long the boundary was beyond the plan
  Micros beyond_since_ = -1;   // it is, since; -1: it is not
  Micros raised_beyond_ = -1;  // groups were last given up beyond the plan
  double host_tokens_ = 0;
  Micros slack_since_ = -1;
  StepId slack_since_step_ = 0;
};

}  // namespace vamp
