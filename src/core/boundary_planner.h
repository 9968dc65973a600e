// How many expert groups should be out? The boundary at which one turn takes least engine time:
//
//   E(n) = prefill that a pool of that size makes necessary + (output / batch(n)) · step(n)
//
// More groups out: more prefixes kept, more requests run at once, but every step stages more bytes.
// Least engine time a turn means most turns a second; and since all requests wait for the same
// engine, it means shorter TTFT and TPOT as well. A second bound keeps TPOT from paying for
// throughput: the product batch · E is TPOT · output, and may not exceed what the static split (no
// groups out, no host tier) would have.
#pragma once

#include "core/cost_model.h"
#include "core/estimators.h"
#include "core/reclaim_policy.h"
#include "model/memory_layout.h"

namespace vamp {

// Owns the estimators of steps and turns. Fed by PricedPolicy; one thread; never reads a clock.
class BoundaryPlanner {
 public:
  struct Config {
    price::PrefillCost prefill;  // before anything is measured
    DecodeEstimator::Prior decode;
    double up_bytes_per_us = 50e3, down_bytes_per_us = 50e3;
    double copy_slowdown = 0.06;  // relative, of a step while KV copies run
    int experts_per_token = 0;    // 0: unknown, every given-up expert is taken to be chosen
    int reuse_window_turns = 64;  // turns whose reuse distances count: contexts grow
    int min_turns = 8;            // before which nothing is given up by plan
    double hysteresis = 0.03;     // gain below which the target stays
    Micros bar = 60 * kSecond;    // no plan for so long after one led beyond the bound on TPOT,
    Micros longest_bar = 960 * kSecond;  // doubling up to this
    double tpot_tolerance = 0.01;        // over the static split's TPOT
  };
  // `layout` must outlive this.
  BoundaryPlanner(const MemoryLayout& layout, const Config& config);

  void observe(const StepObservation& step);
  void turn_scheduled(SessionId session, int prompt_tokens, int cached_tokens) {
    reuse_.turn_scheduled(session, prompt_tokens, cached_tokens);
  }
  void turn_ended(SessionId session, const RequestStats& stats, Micros now);
  // A waiting request lacked room although every cached block was counted.
  void room_limited(Micros now) { last_room_limited_ = now; }

  // Recomputes the target if it is older than `interval`. Returns it: groups out, whole increments.
  int target(Micros now, double host_tokens, Micros interval = 250e3);

  // Microseconds that n groups add to a step of k tokens: M4, M5, D.
  Micros step_delay(int groups_out, double tokens) const;
  // The same for the steps of late: some carry prefill, others only `decodes` tokens.
  Micros mean_step_delay(int groups_out, double decodes) const;
  // E(n) and TPOT(n) with `host_tokens` of host tier.
  struct Forecast {
    Micros engine_per_turn = 0, tpot = 0;
    double batch = 0;
  };
  Forecast forecast(int groups_out, double host_tokens, Micros now) const;
  // Whether `fewer` groups out take less engine time than `more`, with as many requests running.
  bool worth_restoring(int more, int fewer, double host_tokens, Micros now) const;

  const price::PrefillCost& prefill_cost() const { return prefill_.cost(); }
  double up_rate() const { return up_.bytes_per_us(); }
  double down_rate() const { return down_.bytes_per_us(); }
  double steps_per_us() const { return 1 / std::max(1.0, step_us_.value()); }
  double staging_share() const { return staging_share_.value(); }  // u: of the link, 0 ... 1
  double prefill_load(Micros now) const { return prefill_load_.rate(now); }  // rho
  double pool_tokens(int groups_out) const;
  // Tokens of KV newly written a microsecond; bytes' worth of finished requests likewise.
  double tokens_written_rate(Micros now) const { return written_.rate(now); }
  double tokens_released_rate(Micros now) const { return released_.rate(now); }
  Micros service_interval(Micros now) const { return 1 / std::max(1e-9, turn_rate_.rate(now)); }
  double mean_context() const { return context_.value(); }
  double mean_batch() const { return batch_.value(); }

 private:
  double reachable_batch(int groups_out, Micros now) const;
  const MemoryLayout& layout_;
  Config config_;
  PrefillEstimator prefill_;
  DecodeEstimator decode_;
  LinkEstimator up_, down_;
  ExpertHeat heat_;
  HiddenCopyEstimator hidden_;
  ReuseCurve reuse_;
  Ewma output_{1.0 / 64, 128}, batch_{1.0 / 128, 1}, waiting_{1.0 / 128}, context_{1.0 / 128},
      step_us_{1.0 / 64, 10e3}, staging_share_{1.0 / 64}, chunk_{1.0 / 32, 512},
      prefill_steps_{1.0 / 64};  // share of steps that carry prefill
  RateMeter prefill_load_{10 * kSecond}, written_{30 * kSecond}, released_{10 * kSecond},
      turn_rate_{30 * kSecond};
  double max_chunk_ = 256;
  int64_t turns_ = 0;
  Micros last_room_limited_ = -1e18, planned_at_ = -1e18;
  int target_ = 0;
  Micros raised_at_ = -1e18, barred_until_ = -1e18, barred_for_ = 0;
};

}  // namespace vamp
