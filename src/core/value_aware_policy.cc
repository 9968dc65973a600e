#include "core/value_aware_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/cost_model.h"
#include "core/static_policy.h"

namespace vamp {

struct ValueAwarePolicy::Gap {
  int64_t blocks = 0;          // ours, to be reclaimed
  double tokens = 0;           // in them
  double decision_blocks = 0;  // G, in the paper's blocks
  double bytes = 0;
};

ValueAwarePolicy::ValueAwarePolicy(const ValueAwareConfig& config)
    : config_(config),
      t_queue_(config.t_queue_weight, config.t_queue),
      t_prefill_(1.0 / 32, config.t_prefill),
      c_eff_(1.0 / 32, config.c_eff) {}

ValueAwarePolicy::Gap ValueAwarePolicy::measure_gap(const ReclaimInputs& in) const {
  Gap gap;
  gap.blocks = in.gap_blocks;
  gap.decision_blocks = in.gap_blocks;
  if (config_.decision_block_tokens > 0) {
    const int64_t unit = config_.decision_block_tokens;
    const int64_t count = (gap.blocks * in.block_tokens + unit - 1) / unit;
    gap.decision_blocks = static_cast<double>(count);
    gap.blocks = (count * unit + in.block_tokens - 1) / in.block_tokens;
  }
  gap.tokens = static_cast<double>(gap.blocks) * in.block_tokens;
  gap.bytes = static_cast<double>(gap.blocks) * static_cast<double>(in.boundary.block_bytes);
  return gap;
}

Micros ValueAwarePolicy::eviction(const ReclaimInputs& in, double tokens) const {
  const uint64_t used = in.evictable.empty() ? in.step : in.evictable.front().last_used_step;
  const double p_eff = paper::effective_reuse_probability(
      config_.alpha, in.hit_rate, static_cast<double>(in.step - std::min(used, in.step)),
      config_.tau_steps);
  return paper::eviction_cost(p_eff, tokens, t_prefill_.value(),
                              config_.t_sched + t_queue_.value());
}

ReclaimDecision ValueAwarePolicy::choose(const ReclaimInputs& in) {
  const Gap gap = measure_gap(in);
  const BoundaryState& boundary = in.boundary;
  shards_per_group_ = boundary.shards_per_group;
  const double w = paper::clamp_remaining(in.min_remaining_tokens, config_.w_max);
  const auto expansion = [&](int64_t groups) {
    return paper::expansion_cost(static_cast<double>(groups) * boundary.shards_per_group,
                                 boundary.experts_per_layer, c_eff_.value(), w);
  };
  const int room = boundary.can_move ? boundary.max_groups_out - boundary.groups_out : 0;
  const int increments = room > 0 ? static_cast<int>(boundary.blocks_gained.size()) : 0;
  const auto groups_in = [&](int k) { return std::min(k * boundary.increment_groups, room); };

  // C_c, if the cached blocks cover the gap.
  const double cost_evict =
      in.cached_blocks >= in.gap_blocks ? eviction(in, gap.tokens) : kInfeasible;

  // C_e, if the increments left do.
  const auto& gained = boundary.blocks_gained;
  const int whole = static_cast<int>(std::lower_bound(gained.begin(), gained.begin() + increments,
                                                      in.gap_blocks) -
                                     gained.begin()) +
                    1;
  const bool can_expand = whole <= increments;
  const int64_t unrounded =
      boundary.group_bytes > 0
          ? paper::groups_for_bytes(gap.bytes, static_cast<double>(boundary.group_bytes))
          : 0;
  const double cost_unrounded = can_expand ? expansion(unrounded) : kInfeasible;
  const double cost_rounded = can_expand ? expansion(groups_in(whole)) : kInfeasible;
  const double cost_expand = config_.unrounded_groups ? cost_unrounded : cost_rounded;

  // C_b: as many whole increments as the gap holds (all that are left, if fewer), the rest evicted.
  const int part = std::min(can_expand ? whole - 1 : increments, increments);
  const int part_blocks = part > 0 ? gained[part - 1] : 0;
  const int rest = in.gap_blocks - part_blocks;
  const bool can_split = part > 0 && rest > 0 && in.cached_blocks >= rest;
  const double rest_tokens =
      std::max(0.0, gap.tokens - static_cast<double>(part_blocks) * in.block_tokens);
  const double cost_both =
      can_split ? expansion(groups_in(part)) + eviction(in, rest_tokens) : kInfeasible;

  // C_p, if the victim's last block is partly filled: only that becomes free at once.
  const bool can_preempt = !in.victims.empty() && in.victims.front().partial_tokens > 0;
  const double cost_preempt =
      can_preempt
          ? paper::preemption_cost(paper::single_preemption_cost(config_.t_sched, t_queue_.value(),
                                                                 in.victims.front().partial_tokens,
                                                                 t_prefill_.value()),
                                   gap.decision_blocks)
          : kInfeasible;

  // Ties go to what comes first here: the action that costs nobody anything now.
  ReclaimDecision decision;
  const double least = std::min({cost_evict, cost_expand, cost_both, cost_preempt});
  if (least == kInfeasible) {
    decision = evict_or_preempt(in);
  } else if (cost_evict == least) {
    decision.kind = ActionKind::kDrop;
    decision.drop_blocks = static_cast<int>(std::min<int64_t>(gap.blocks, in.cached_blocks));
  } else if (cost_expand == least) {
    decision.kind = ActionKind::kGiveUpExperts;
    decision.give_up_groups = groups_in(whole);
  } else if (cost_both == least) {
    decision.kind = ActionKind::kGiveUpAndDrop;
    decision.give_up_groups = groups_in(part);
    decision.drop_blocks = rest;
  } else {
    decision.kind = ActionKind::kPreemptRecompute;
    decision.preempt_recompute.push_back(in.victims.front().id);
  }
  decision.costs = {{ActionKind::kDrop, cost_evict},
                    {ActionKind::kGiveUpExperts, cost_expand},
                    {ActionKind::kGiveUpAndDrop, cost_both},
                    {ActionKind::kPreemptRecompute, cost_preempt}};
  decision.note = fmt::format(
      "w {:.0f}, r_hit {:.3f}, t_queue {:.0f} us, C_e unrounded {:.0f} us of {} groups, rounded "
      "{:.0f} us",
      w, in.hit_rate, t_queue_.value(), cost_unrounded, unrounded, cost_rounded);
  return decision;
}

void ValueAwarePolicy::observe(const StepObservation& step) {
  if (!config_.measured) return;
  if (step.prefill_tokens >= 256) t_prefill_.add(step.duration / step.prefill_tokens);
  if (step.groups_out > 0) {
    c_eff_.add(step.staging.stall / (static_cast<double>(step.groups_out) * shards_per_group_));
  }
}

void ValueAwarePolicy::on_rescheduled(Micros preempted, Micros now) {
  t_queue_.add(now - preempted);
}

}  // namespace vamp
