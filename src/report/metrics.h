// The figures of a run: one pass over its record, no device, no clock.
#pragma once

#include <array>
#include <vector>

#include "report/run_record.h"

namespace vamp {

// Of a list of numbers; quantiles interpolate linearly between neighbours. NaN when empty.
struct Distribution {
  double mean = NAN, p50 = NAN, p90 = NAN, p99 = NAN;
};
Distribution distribution(std::vector<double> values);
// q in [0, 1]; `sorted` ascending.
double quantile(const std::vector<double>& sorted, double q);

// Q(T, P): requests a second of the window that end with TTFT <= T and TPOT <= P.
inline constexpr std::array<double, 5> kSloTtftSeconds = {1, 2, 5, 15, 30};
inline constexpr std::array<double, 10> kSloTpotMillis = {15,  25,  50,  75,  100,
                                                          150, 200, 250, 300, 350};
using SloGrid = std::array<std::array<double, kSloTpotMillis.size()>, kSloTtftSeconds.size()>;

struct ActionSummary {
  int count = 0;
  double mean_cost_us = NAN;  // of the choices whose price is finite
  int64_t blocks_won = 0, reused_tokens = 0;
};

// TTFT, throughput, hit rates and preemptions count requests that arrive in the window, TPOT the
// whole run. A turn without an answer counts as none of them but in `failed_turns`.
struct RunSummary {
  int turns = 0, failed_turns = 0, window_turns = 0, warm_turns = 0;
  double window_s = 0;
  Distribution ttft_s, ttft_warm_s, tpot_s, queue_s, e2e_s;
  double requests_per_s = 0, output_tokens_per_s = 0;
  double prefix_hit_rate = NAN;       // cached prompt tokens / prompt tokens, both tiers
  double prefix_hit_rate_warm = NAN;  // without each session's first turn
  double host_hit_rate = NAN;         // the part that came from the host tier
  double preemptions_per_1000_turns = NAN;
  double pool_use_mean = NAN, pool_use_max = NAN;  // referenced / all KV blocks, over time
  double pool_full_mean = NAN;                     // referenced or cached / all
  double groups_out_mean = NAN;
  int groups_out_max = 0, groups_out_end = 0;
  uint64_t boundary_moves = 0;
  double running_mean = NAN, waiting_mean = NAN;
  double staged_bytes = 0, activated_bytes = 0, demoted_bytes = 0, promoted_bytes = 0;
  double staging_stall_s = 0;
  double experts_per_layer_mean = NAN;
  int steps = 0, failed_steps = 0;
  SloGrid slo{};
  std::array<ActionSummary, kNumActionKinds> actions;
};
RunSummary summarize(const RunRecord& run);

// True when the turn counts towards the window's figures.
bool in_window(const RunRecord& run, const TurnRecord& turn);

}  // namespace vamp
