// A run's record brought down to what a page can draw: a few hundred points a line, whatever its
// length.
#pragma once

#include <string>
#include <vector>

#include "report/run_record.h"

namespace vamp {

struct Line {
  std::string name;
  std::vector<double> values;  // NaN: nothing happened there
};

struct TurnPoint {
  double arrival_s = 0, ttft_s = 0;
};
struct TurnBin {
  int first_turn = 0, last_turn = 0;  // from 1
  int turns = 0;
  double ttft_p90_s = NAN;
};
struct TurnMedian {
  int turn = 0;  // from 1
  int sessions = 0;
  double ttft_p50_s = NAN;
};
struct ExpertsByTokens {
  int tokens = 0;  // steps of up to this many tokens (a power of two)
  int steps = 0;
  double experts_per_layer = NAN;
};
// Distinct experts a step, mean over the steps of each stretch of time, by MoE layer.
struct ExpertsByLayer {
  std::vector<double> time_s;             // centres of the stretches
  std::vector<std::vector<double>> mean;  // [layer][stretch]; NaN: no step; empty: not counted
};
// Medians of the prices of one action: when it won, and when another won.
struct ActionPrices {
  int chosen = 0, considered = 0;
  double chosen_p50 = NAN, runner_up_p50 = NAN, refused_p50 = NAN;
};

struct RunSeries {
  std::vector<double> time_s;   // bucket centres
  std::vector<Line> lines;      // gauges are means over each bucket's time, rates are a second
  std::vector<TurnPoint> ttft;  // of single turns, thinned evenly
  std::vector<double> ttft_quantiles_s;  // at 0, 2, ..., 100%
  std::vector<TurnBin> bins;             // ten by turn
  std::vector<TurnMedian> by_turn;
  std::vector<ExpertsByTokens> experts;
  ExpertsByLayer experts_by_layer;
  std::vector<double> decision_time_s;
  std::array<std::vector<int>, kNumActionKinds> decisions;  // by action and bucket
  std::array<ActionPrices, kNumActionKinds> prices;
};

struct SeriesOptions {
  int buckets = 180;
  int decision_buckets = 60;
  int heat_buckets = 60;
  int max_points = 1200;
};
RunSeries make_series(const RunRecord& run, const SeriesOptions& options = {});

}  // namespace vamp
