// One record a step: what metrics, reports and dashboards are made of.
#pragma once

#include "core/scheduler.h"
#include "core/step_plan.h"

namespace vamp {

struct StepStats {
  StepId step = 0;
  Micros planned = 0;         // when the plan was made, by the loop's clock
  Micros start = 0, end = 0;  // of the step, by the executor's clock
  bool executed = true;
  int requests = 0;  // in the batch
  int prefill_tokens = 0, decode_tokens = 0;
  StagingStats staging;
  size_t demoted_bytes = 0, promoted_bytes = 0;  // copies that ended
  Micros demote_us = 0, promote_us = 0, boundary_us = 0;
  float experts_per_layer = 0;             // distinct experts chosen, mean over MoE layers
  std::vector<uint16_t> experts_by_layer;  // the same by MoE layer; empty: not known
  int bank_groups = 0;                     // frames in the staging banks
  SchedulerStats scheduler;                // after the step's result was taken in
};

// `plan` and `result` are of the same step.
inline StepStats make_step_stats(const StepPlan& plan, Micros planned) {
  StepStats stats;
  stats.step = plan.step;
  stats.planned = planned;
  stats.requests = static_cast<int>(plan.batch.size());
  for (const BatchEntry& entry : plan.batch) {
    (entry.count == 1 && entry.sample ? stats.decode_tokens : stats.prefill_tokens) += entry.count;
  }
  return stats;
}

inline void add_result(StepStats& stats, const StepResult& result, const SchedulerStats& after,
                       const MemoryLayout& layout) {
  stats.start = result.start;
  stats.end = result.end;
  stats.executed = result.executed;
  stats.staging = result.staging;
  stats.demoted_bytes = result.demoted.size() * layout.block_bytes;
  stats.promoted_bytes = result.promoted.size() * layout.block_bytes;
  stats.demote_us = result.demote_us;
  stats.promote_us = result.promote_us;
  stats.boundary_us = result.boundary_us;
  stats.experts_per_layer = result.experts_per_layer;
  stats.experts_by_layer = result.experts_by_layer;
  stats.scheduler = after;
  stats.bank_groups = layout.bank_groups(after.groups_out);
}

}  // namespace vamp
