#include "core/cost_model.h"

#include <algorithm>
#include <cmath>

namespace vamp {
namespace paper {

double effective_reuse_probability(double alpha, double hit_rate, double age, double tau) {
  return alpha * hit_rate / (1.0 + age / tau);
}

Micros eviction_cost(double p_eff, double tokens, Micros t_prefill, Micros t_overhead) {
  return p_eff * (tokens * t_prefill + t_overhead);
}

double clamp_remaining(double remaining_tokens, double w_max) {
  return std::clamp(remaining_tokens, 1.0, w_max);
}

Micros expansion_cost(double shards, double experts, Micros c_eff, double w) {
  return std::min(shards, experts) * c_eff * w;
}

Micros single_preemption_cost(Micros t_sched, Micros t_queue, double partial_tokens,
                              Micros t_prefill) {
  return t_sched + t_queue + partial_tokens * t_prefill;
}

Micros preemption_cost(Micros single, double gap_blocks) {
  return single * gap_blocks;
}

int64_t groups_for_bytes(double bytes, double group_bytes) {
  return static_cast<int64_t>(std::ceil(bytes / group_bytes));
}

int64_t round_up(int64_t groups, int64_t increment) {
  return (groups + increment - 1) / increment * increment;
}

}  // namespace paper

namespace price {
namespace {
constexpr Micros kLongestWait = 30 * kSecond;
constexpr double kLeastLinkShare = 0.05;
constexpr double kHighestLoad = 0.9;
}  // namespace

Micros prefill(const PrefillCost& cost, double cached, double tokens) {
  if (tokens <= 0) return 0;
  return cost.c0 + cost.c1 * tokens + cost.c2 * tokens * (cached + tokens / 2);
}

Micros copy(double bytes, double bytes_per_us, double utilization) {
  return bytes / (bytes_per_us * std::max(kLeastLinkShare, 1 - utilization));
}

double activation_probability(double q, double tokens) {
  if (q >= 1) return tokens > 0 ? 1 : 0;
  return -std::expm1(tokens * std::log1p(-q));
}

Micros staging_delay(double activated_bytes, double whole_bytes, double bytes_per_us, Micros hidden,
                     Micros step_us) {
  const Micros activated = std::max(0.0, activated_bytes / bytes_per_us - hidden);
  const Micros whole = std::max(0.0, whole_bytes / bytes_per_us - step_us);
  return std::min(activated, whole);
}

double externality(Micros engine_us, double requests, double prefill_load) {
  return engine_us * (1 + requests) / (1 - std::min(prefill_load, kHighestLoad));
}

double drop(double reuse_probability, double recompute_externality) {
  return reuse_probability * recompute_externality;
}

double drop_clean(double bytes, double up_rate, double slowdown, double reuse_probability,
                  double link_share_taken, double requests) {
  const Micros alone = bytes / up_rate;
  const Micros stall = link_share_taken > 0.5 ? alone * requests : 0;
  return reuse_probability *
         (copy(bytes, up_rate, link_share_taken) + slowdown * alone * requests + stall);
}

double demote(double bytes, double down_rate, double up_rate, double slowdown,
              double reuse_probability, double link_share_taken, double requests) {
  return slowdown * bytes / down_rate * requests +
         drop_clean(bytes, up_rate, slowdown, reuse_probability, link_share_taken, requests);
}

double give_up(double staging_externality, double requests, double handles, Micros map_us) {
  return staging_externality + 2 * handles * map_us * requests;
}

double preempt_recompute(Micros requeue, double p_keep, double recompute_externality) {
  return requeue + (1 - p_keep) * recompute_externality;
}

double preempt_swap(Micros requeue, double bytes, double down_rate, double up_rate, double slowdown,
                    double link_share_taken, double requests) {
  return requeue + bytes / down_rate + copy(bytes, up_rate, link_share_taken) +
         slowdown * (bytes / down_rate + bytes / up_rate) * requests;
}

double wait(double bytes_short, double release_rate, double requests_behind) {
  const Micros delay =
      release_rate > 0 ? std::min(bytes_short / release_rate, kLongestWait) : kLongestWait;
  return delay * (1 + requests_behind);
}

Micros engine_time_per_turn(Micros prefill_us, double output_tokens, double batch, Micros step_us) {
  return prefill_us + output_tokens / std::max(batch, 1.0) * step_us;
}

}  // namespace price
}  // namespace vamp
