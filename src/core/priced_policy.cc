#include "core/priced_policy.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/cost_model.h"

namespace vamp {

struct PricedPolicy::Market {
  Micros now = 0;
  double requests = 0;      // N: all that run or wait
  double prefill_load = 0;  // rho
  double link_taken = 0;    // u
  Micros horizon = 0;       // T_res: a block's life from last use to eviction
  Micros service = 0;       // between two turns' starts of service
  double block_bytes = 0;
};

struct PricedPolicy::Segment {
  const EvictionCandidate* candidate = nullptr;
  double drop = 0, demote = kInfeasible;  // prices of the whole segment
  double per_block = 0;                   // of dropping
};

struct PricedPolicy::Plan {
  ActionKind kind() const {
    if (!recompute.empty()) return ActionKind::kPreemptRecompute;
    if (groups == 0) return ActionKind::kDrop;
    return dropped == 0 ? ActionKind::kGiveUpExperts : ActionKind::kGiveUpAndDrop;
  }
  bool feasible = false;
  double total = 0;
  int groups = 0, dropped = 0;
  std::vector<uint64_t> drop;
  std::vector<RequestId> recompute;
};

PricedPolicy::PricedPolicy(const MemoryLayout& layout, const PricedConfig& config, const char* name)
    : layout_(layout),
      config_(config),
      name_(name),
      planner_(layout, config.planner),
      requeue_(0.125, config.requeue),
      stay_(0.25, config.horizon) {}

PricedPolicy::Market PricedPolicy::market(Micros now, int running, int waiting, int total_blocks,
                                          int block_tokens, size_t block_bytes) const {
  Market market;
  market.now = now;
  market.requests = running + waiting;
  market.prefill_load = planner_.prefill_load(now);
  market.link_taken = planner_.staging_share();
  const double written = planner_.tokens_written_rate(now);
  market.horizon = static_cast<double>(total_blocks) * block_tokens / std::max(written, 1e-6);
  market.service = planner_.service_interval(now);
  market.block_bytes = static_cast<double>(block_bytes);
  return market;
}

PricedPolicy::Segment PricedPolicy::price_segment(const EvictionCandidate& candidate,
                                                  const Market& market) const {
  const double p = config_.queue_aware_reuse
                       ? sessions_.reuse_probability(candidate.session, market.now, market.horizon,
                                                     market.service)
                       : 0.5;
  Segment segment;
  segment.candidate = &candidate;
  const int blocks = std::max(1, candidate.blocks);
  const double dirty_share = 1 - static_cast<double>(candidate.clean_blocks) / blocks;
  const double bytes = blocks * market.block_bytes;
  const Micros recompute =
      price::prefill(planner_.prefill_cost(), candidate.prefix_tokens, candidate.tokens);
  segment.drop =
      dirty_share *
          price::drop(p, price::externality(recompute, market.requests, market.prefill_load)) +
      price::drop_clean((1 - dirty_share) * bytes, planner_.up_rate(),
                        config_.planner.copy_slowdown, p, market.link_taken, market.requests);
  if (config_.host_tier) {
    segment.demote =
        price::demote(bytes, planner_.down_rate(), planner_.up_rate(),
                      config_.planner.copy_slowdown, p, market.link_taken, market.requests);
  }
  segment.per_block = segment.drop / blocks;
  return segment;
}

std::vector<PricedPolicy::Segment> PricedPolicy::price_segments(
    const std::vector<EvictionCandidate>& candidates, const Market& market) const {
  std::vector<Segment> segments;
  segments.reserve(candidates.size());
  for (const EvictionCandidate& c : candidates) segments.push_back(price_segment(c, market));
  // Stable: equal prices keep the order of last use.
  std::stable_sort(segments.begin(), segments.end(),
                   [](const Segment& a, const Segment& b) { return a.per_block < b.per_block; });
  return segments;
}

double PricedPolicy::price_of_groups(const ReclaimInputs& in, const Market& market, int groups,
                                     int planned_groups) const {
  if (groups == 0) return 0;
  const int after = in.boundary.groups_out + groups;
  const int free_until = std::clamp(planned_groups, in.boundary.groups_out, after);
  return price::give_up(price_of_staging(market, in.running, after, free_until), market.requests,
                        groups, config_.map_us);
}

double PricedPolicy::price_of_staging(const Market& market, int running, int groups_out,
                                      int instead) const {
  const double decodes = std::max(1, running);
  const Micros delay =
      planner_.mean_step_delay(groups_out, decodes) - planner_.mean_step_delay(instead, decodes);
  const double steps = planner_.steps_per_us() * expected_stay(market.now);
  return price::externality(std::max(0.0, delay) * steps, market.requests, market.prefill_load);
}

// What goes beyond the plan lasts as long as it did before, or as it does already.
Micros PricedPolicy::expected_stay(Micros now) const {
  return std::max(stay_.value(), beyond_since_ < 0 ? 0 : now - beyond_since_);
}

void PricedPolicy::watch_excursion(int groups_out, int planned_groups, Micros now) {
  if (groups_out <= std::max(planned_groups, layout_.min_groups_out)) {
    if (beyond_since_ >= 0) stay_.add(now - beyond_since_);
    beyond_since_ = -1;
  } else if (beyond_since_ < 0) {
    beyond_since_ = now;
  }
}

// By recompute: the victim's blocks become evictable, those that the gap needs are dropped when the
// scheduler asks again, and the rest is kept or written back as its price says. A swap would free
// nothing before its copy has ended, and the gap must be met in this step.
void PricedPolicy::add_victims(const ReclaimInputs& in, const Market& market, int missing,
                               Plan& plan) const {
  constexpr size_t kMaxVictims = 4;
  for (size_t v = 0; v < std::min(kMaxVictims, in.victims.size()) && missing > 0; ++v) {
    const PreemptionCandidate& victim = in.victims[v];
    const int lost = std::min(victim.context_tokens, missing * in.block_tokens);
    const Micros again =
        price::prefill(planner_.prefill_cost(), victim.context_tokens - lost, lost);
    plan.total += price::preempt_recompute(
        requeue_.value(), 0, price::externality(again, market.requests, market.prefill_load));
    plan.recompute.push_back(victim.id);
    missing -= std::max(1, victim.total_blocks);
  }
  plan.feasible = !plan.recompute.empty();
}

PricedPolicy::Plan PricedPolicy::make_plan(const ReclaimInputs& in, const Market& market,
                                           const std::vector<Segment>& segments, int increments,
                                           int planned_groups) const {
  Plan plan;
  const BoundaryState& boundary = in.boundary;
  int missing = in.gap_blocks;
  if (increments > 0) {
    plan.groups = std::min(increments * boundary.increment_groups,
                           boundary.max_groups_out - boundary.groups_out);
    plan.total += price_of_groups(in, market, plan.groups, planned_groups);
    missing -= boundary.blocks_gained[increments - 1];
  }
  for (const Segment& segment : segments) {
    if (missing <= 0) break;
    const int blocks = std::min(missing, segment.candidate->blocks);
    plan.drop.push_back(segment.candidate->handle);
    plan.dropped += blocks;
    plan.total += segment.per_block * blocks;
    missing -= blocks;
  }
  const int unseen = in.cached_blocks - plan.dropped;
  if (missing > 0 && unseen >= missing) {
    // The scan was bounded: what lies behind it is taken at the dearest price seen.
    const double dearest = segments.empty() ? 0 : segments.back().per_block;
    plan.dropped += missing;
    plan.total += dearest * missing;
    missing = 0;
  }
  plan.feasible = missing <= 0;
  if (missing > 0) add_victims(in, market, missing, plan);
  return plan;
}

ReclaimDecision PricedPolicy::choose(const ReclaimInputs& in) {
  const Market now = market(in.now, in.running, in.waiting, in.total_blocks, in.block_tokens,
                            in.boundary.block_bytes);
  if (config_.host_tier) host_tokens_ = static_cast<double>(in.host_total_blocks) * in.block_tokens;
  if (in.admission && in.cached_blocks < in.gap_blocks) planner_.room_limited(in.now);
  const int planned = planned_groups(in.now);
  watch_excursion(in.boundary.groups_out, planned, in.now);
  const std::vector<Segment> segments = price_segments(in.evictable, now);

  // None, as many increments as the gap holds, as many as cover it, twice that.
  const auto& gained = in.boundary.blocks_gained;
  const bool movable = config_.experts && in.boundary.can_move &&
                       in.boundary.groups_out < in.boundary.max_groups_out;
  const int most = movable ? static_cast<int>(gained.size()) : 0;
  const int cover =
      most > 0 ? static_cast<int>(std::lower_bound(gained.begin(), gained.end(), in.gap_blocks) -
                                  gained.begin()) +
                     1
               : 0;
  // A waiting request gets experts' memory only as far as the plan goes: the plan weighs how many
  // run at once against longer steps. A running one may go beyond it rather than see another
  // preempted.
  const int inside =
      in.admission ? (planned - in.boundary.groups_out) / in.boundary.increment_groups : most;
  ReclaimDecision decision;
  Plan best;
  best.total = kInfeasible;
  int tried = -1;
  for (const int wanted : {0, cover - 1, cover, 2 * cover}) {
    const int increments = std::min({wanted, most, std::max(0, inside)});
    if (increments <= tried) continue;
    tried = increments;
    const Plan plan = make_plan(in, now, segments, increments, planned);
    const ActionKind kind = plan.kind();
    decision.costs.push_back({kind, plan.feasible ? plan.total : kInfeasible});
    if (plan.feasible && plan.total < best.total) {
      best = plan;
      decision.kind = kind;
    }
  }
  if (in.admission) {
    const double short_bytes = in.gap_blocks * now.block_bytes;
    const double release_rate =
        planner_.tokens_released_rate(in.now) * now.block_bytes / in.block_tokens;
    decision.costs.push_back(
        {ActionKind::kWait, price::wait(short_bytes, release_rate, in.num_behind)});
    if (!best.feasible) {
      decision.kind = ActionKind::kWait;
      decision.wait = true;
    }
  }
  decision.drop = std::move(best.drop);
  decision.drop_blocks = best.dropped;
  decision.give_up_groups = best.groups;
  if (best.groups > 0 && in.boundary.groups_out + best.groups > planned) raised_beyond_ = in.now;
  decision.preempt_recompute = std::move(best.recompute);
  decision.note = fmt::format(
      "planned boundary {}, N {:.0f}, prefill load {:.2f}, {:.1f} us a token, "
      "link {:.1f} GB/s, {:.0f}% taken",
      planned, now.requests, now.prefill_load, planner_.prefill_cost().c1, planner_.up_rate() / 1e3,
      100 * now.link_taken);
  return decision;
}

BackgroundDecision PricedPolicy::background(const BackgroundInputs& in) {
  BackgroundDecision decision;
  const Market now = market(in.now, in.running, in.waiting, in.total_blocks, layout_.block_tokens,
                            layout_.block_bytes);
  if (config_.host_tier) {
    host_tokens_ = static_cast<double>(in.host_total_blocks) * layout_.block_tokens;
    double bytes = 0;
    for (const EvictionCandidate& candidate : in.dirty) {
      if (bytes >= static_cast<double>(config_.write_back_bytes)) break;
      const Segment segment = price_segment(candidate, now);
      if (segment.demote >= segment.drop) continue;
      decision.write_back.push_back(candidate.handle);
      bytes += (candidate.blocks - candidate.clean_blocks) * now.block_bytes;
    }
  }

  const int planned = planned_groups(in.now);
  watch_excursion(in.boundary.groups_out, planned, in.now);
  const int surplus = in.boundary.groups_out - std::max(planned, in.boundary.min_groups_out);
  int k = 0;  // increments that free blocks alone can give back, one more staying free
  while (in.boundary.can_move && k + 1 < static_cast<int>(in.blocks_lost.size()) &&
         (k + 1) * in.boundary.increment_groups <= surplus && in.waiting == 0 &&
         in.blocks_lost[k + 1] <= in.free_blocks + in.cached_blocks) {
    ++k;
  }
  if (k == 0) {
    slack_since_ = -1;
  } else if (slack_since_ < 0) {
    slack_since_ = in.now;
    slack_since_step_ = in.step;
  } else if (in.now - slack_since_ >= config_.restore_after ||
             in.step - slack_since_step_ >= static_cast<StepId>(config_.restore_after_steps)) {
    decision.restore_groups = k * in.boundary.increment_groups;
    slack_since_ = -1;
  }
  if (decision.restore_groups == 0 && surplus > 0) {
    decision.restore_groups = restorable_by_price(in, surplus);
  }
  return decision;
}

int PricedPolicy::planned_groups(Micros now) {
  if (!config_.experts) return layout_.min_groups_out;
  return std::max(layout_.min_groups_out, planner_.target(now, host_tokens_));
}

// Else whoever waits would fill what running requests once took beyond the plan, for ever.
std::optional<int> PricedPolicy::admission_limit(int groups_out, Micros now) {
  const int planned = planned_groups(now);
  if (groups_out <= planned) return std::nullopt;
  return static_cast<int>(planner_.pool_tokens(planned) / layout_.block_tokens);
}

// Beyond the plan and under pressure: an increment comes back when the steps that it slows down
// take more engine time than its cached blocks save.
int PricedPolicy::restorable_by_price(const BackgroundInputs& in, int surplus) const {
  if (!in.boundary.can_move || in.blocks_lost.empty()) return 0;
  if (in.now - raised_beyond_ < config_.restore_after) return 0;
  const int groups = std::min(surplus, in.boundary.increment_groups);
  const int dropped = std::max(0, in.blocks_lost.front() - in.free_blocks);
  if (groups < in.boundary.increment_groups || dropped > in.cached_blocks) return 0;
  const int now = in.boundary.groups_out;
  return planner_.worth_restoring(now, now - groups, host_tokens_, in.now) ? groups : 0;
}

void PricedPolicy::on_turn_ended(SessionId session, const RequestStats& stats,
                                 const ReuseHint& hint, Micros now) {
  planner_.turn_ended(session, stats, now);
  sessions_.turn_ended(session, hint, now);
}

}  // namespace vamp
