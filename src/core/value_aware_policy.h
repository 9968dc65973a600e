// The paper's policy: value-aware memory partitioning, arXiv 2609.13537. A baseline, kept faithful.
//
// For the blocks an allocation lacks it prices eviction (C_c), giving up expert groups (C_e), part
// of each (C_b) and preemption (C_p) in microseconds of future work and takes the cheapest that is
// feasible. It never gives residency back and knows no host tier. The formulas are in cost_model.h.
#pragma once

#include "core/estimators.h"
#include "core/reclaim_policy.h"

namespace vamp {

// The paper's constants, set once there and never retuned.
struct ValueAwareConfig {
  double alpha = 0.5;       // weight of the hit rate in the reuse probability
  double tau_steps = 2000;  // age at which that probability has halved
  Micros t_prefill = 15;    // a token
  Micros t_sched = 500;     // scheduling a request again
  Micros t_queue = 1000;    // until a preempted request runs again; at first, then as observed
  double w_max = 64;        // steps that an expansion is charged at most
  Micros c_eff = 12.3;      // a shard and step: 0.63 ms · 10 / 512
  // The formulas were made for blocks of 544 tokens (272 under TP4): with ours of 16 an eviction
  // looks 34 times smaller and always wins. The gap is rounded up to whole blocks of this size
  // before it is priced. 0: no rounding.
  int decision_block_tokens = 544;
  // Charge C_e for the groups the gap needs (the paper's published median says so) rather than for
  // the whole increments that are moved. Both are logged.
  bool unrounded_groups = true;
  // Replace t_prefill and c_eff by what is measured: marginal prefill time a token, staging stall a
  // shard and step.
  bool measured = false;
  double t_queue_weight = 0.125;  // EWMA weight of a new preempt-to-reschedule delay
};

// Decisions rest on the inputs, the constants and the observed t_queue. One thread.
class ValueAwarePolicy final : public ReclaimPolicy {
 public:
  explicit ValueAwarePolicy(const ValueAwareConfig& config = {});
  const char* name() const override { return config_.measured ? "paper-measured" : "paper"; }
  ReclaimDecision choose(const ReclaimInputs& inputs) override;
  void observe(const StepObservation& step) override;
  void on_rescheduled(Micros preempted, Micros now) override;
  Micros t_queue() const { return t_queue_.value(); }

 private:
  struct Gap;  // what is missing, in the units of the formulas
  Gap measure_gap(const ReclaimInputs& inputs) const;
  Micros eviction(const ReclaimInputs& inputs, double tokens) const;

  ValueAwareConfig config_;
  Ewma t_queue_, t_prefill_, c_eff_;
  int shards_per_group_ = 1;
};

}  // namespace vamp
