// Every formula of the reclaim policies, one pure function of plain numbers each. Nothing here
// reads a clock, a device or an estimator; who calls says where the numbers come from.
//
// Units: durations in microseconds (Micros), sizes in bytes, rates in bytes per microsecond
// (1 GB/s = 1,000 bytes/us). Costs of the paper's policy are microseconds of future work; prices of
// PricedPolicy are request-microseconds: delay summed over all requests that it delays.
#pragma once

#include <cstdint>
#include <limits>

#include "base/units.h"

namespace vamp {

inline constexpr double kInfeasible = std::numeric_limits<double>::infinity();

// Value-aware memory partitioning, arXiv 2609.13537. Symbols as there.
namespace paper {

// p_eff = alpha · r_hit / (1 + age / tau): how likely the LRU-front prefix is asked for again.
// hit_rate 0 ... 1; age and tau in scheduler steps.
double effective_reuse_probability(double alpha, double hit_rate, double age, double tau);

// C_c = p_eff · (n_tok · t_prefill + t_overhead), t_overhead = t_sched + t_queue.
Micros eviction_cost(double p_eff, double tokens, Micros t_prefill, Micros t_overhead);

// w: the smallest remaining decode budget among running requests, clamped to [1, w_max]. It stands
// for the number of steps that will pay for the missing experts.
double clamp_remaining(double remaining_tokens, double w_max);

// C_e(n) = min(n, E) · c_eff · w. `shards` n: of the new expansion only, over all layers; `experts`
// E: local expert shards per layer and rank; c_eff: us per shard and step.
Micros expansion_cost(double shards, double experts, Micros c_eff, double w);

// C_p1 = t_sched + t_queue + n_partial · t_prefill: preempting one request.
Micros single_preemption_cost(Micros t_sched, Micros t_queue, double partial_tokens,
                              Micros t_prefill);

// C_p = C_p1 · G: one preemption yields one uncached block, G are needed.
Micros preemption_cost(Micros single, double gap_blocks);

// Expert groups that hold `bytes`: the count before rounding to increments.
int64_t groups_for_bytes(double bytes, double group_bytes);

// The same rounded up to whole increments.
int64_t round_up(int64_t groups, int64_t increment);

}  // namespace paper

// Prices of PricedPolicy.
namespace price {

// T_pre(a, m) = c0 + c1 m + c2 m (a + m/2): prefilling m tokens behind a cached ones. c0: us a
// turn; c1: us a token (dense products); c2: us per token and token of context (attention).
struct PrefillCost {
  double c0 = 0, c1 = 15, c2 = 0;
};
Micros prefill(const PrefillCost& cost, double cached, double tokens);

// Copying over a link of which `utilization` (0 ... 1) is taken: bytes / (rate (1 - utilization)).
// The share left is never taken for less than 5%.
Micros copy(double bytes, double bytes_per_us, double utilization);

// Probability that at least one of `tokens` tokens chooses an expert that a token chooses with
// probability q: 1 - (1 - q)^k.
double activation_probability(double q, double tokens);

// D: microseconds that given-up experts add to one step. The executor stages either only activated
// experts (of whose copy the resident experts' products hide `hidden` us) or the whole region
// behind the step's own work, whichever is faster: min(max(0, activated / rate - hidden), max(0,
// whole / rate - step)).
Micros staging_delay(double activated_bytes, double whole_bytes, double bytes_per_us, Micros hidden,
                     Micros step_us);

// X(z) = z (1 + N) / (1 - min(rho, 0.9)): z us of engine time delay the request itself, all N that
// run or wait, and those that arrive in the busy period which it prolongs. rho: share of time that
// the engine spends on prefill.
double externality(Micros engine_us, double requests, double prefill_load);

// P1: dropping a segment. p · X(T_pre).
double drop(double reuse_probability, double recompute_externality);

// P2: moving a segment of `bytes` to the host tier: the copy slows N requests by `slowdown`
// (relative) while it runs; with probability p it is copied back, for which its own request waits,
// too. `link_share_taken`: of the link towards the device; when staging takes more than half of it,
// the copy delays the experts of all N. rates: bytes/us down (to the host) and up.
double demote(double bytes, double down_rate, double up_rate, double slowdown,
              double reuse_probability, double link_share_taken, double requests);

// P2's second term alone: a segment whose copy the host holds already is dropped for this.
double drop_clean(double bytes, double up_rate, double slowdown, double reuse_probability,
                  double link_share_taken, double requests);

// P3: giving up expert groups. What steps take longer while they are out is engine time like any
// other: staging_externality is X of all of it. Moving `handles` handles costs map_us each, now and
// once more when they come back, and N requests wait for it.
double give_up(double staging_externality, double requests, double handles, Micros map_us);

// P4: preempting by recompute. The victim waits `requeue` to come back; with probability 1 - p_keep
// its context has been evicted by then and is prefilled again.
double preempt_recompute(Micros requeue, double p_keep, double recompute_externality);

// P5: preempting by swap: the victim waits, its bytes go to the host and come back.
double preempt_swap(Micros requeue, double bytes, double down_rate, double up_rate, double slowdown,
                    double link_share_taken, double requests);

// P6: letting a request wait (only to admit): min(bytes short / release rate, 30 s) · (1 + requests
// behind it). release_rate: bytes that finishing requests set free a us.
double wait(double bytes_short, double release_rate, double requests_behind);

// What decides how many experts are out: the engine time that one turn takes in steady state,
//   T_prefill + (output / batch) · T_decode(batch)
// where prefill is spent on what the pool of that size doesn't hold and `step` includes staging.
// Least is best for throughput, and since every request waits for the same engine, for TTFT and
// TPOT too.
Micros engine_time_per_turn(Micros prefill_us, double output_tokens, double batch, Micros step_us);

}  // namespace price
}  // namespace vamp
