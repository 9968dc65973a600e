#include "exec/staging_chooser.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace vamp {
namespace {

constexpr int kWhole = 0, kActivated = 1;
constexpr int kFirstSamples = 2;  // of each mode before they are compared
constexpr double kTryEvery = 32;  // steps, times how much dearer the other mode is
constexpr double kNewest = 0.2;   // weight of the newest step in the mean

}  // namespace

StagingChooser::Bucket& StagingChooser::bucket(int tokens, int groups_out) {
  const int index = static_cast<int>(4 * std::log2(static_cast<double>(std::max(tokens, 1))));
  Bucket& b = buckets_[std::min<size_t>(index, buckets_.size() - 1)];
  // Estimates of a boundary that has moved by more than a fifth say nothing any more.
  if (std::abs(b.groups_out - groups_out) * 5 > b.groups_out) {
    b = Bucket{};
    b.groups_out = groups_out;
  }
  return b;
}

StagingMode StagingChooser::choose(int tokens, int groups_out) {
  const Bucket& b = bucket(tokens, groups_out);
  const auto mode = [](int m) {
    return m == kWhole ? StagingMode::kWholeRegion : StagingMode::kActivated;
  };
  for (int m : {kActivated, kWhole}) {
    if (b.modes[m].samples < kFirstSamples) return mode(m);
  }
  const int best = b.modes[kWhole].mean < b.modes[kActivated].mean ? kWhole : kActivated;
  const Estimate& other = b.modes[1 - best];
  const double dearer = other.mean / std::max(b.modes[best].mean, 1.0);
  const bool try_other = static_cast<double>(b.steps - other.last_tried) > kTryEvery * dearer;
  return mode(try_other ? 1 - best : best);
}

void StagingChooser::observe(StagingMode mode, int tokens, int groups_out, Micros took) {
  Bucket& b = bucket(tokens, groups_out);
  Estimate& e = b.modes[mode == StagingMode::kWholeRegion ? kWhole : kActivated];
  e.mean = e.samples == 0 ? took : e.mean + kNewest * (took - e.mean);
  ++e.samples;
  e.last_tried = ++b.steps;
}

}  // namespace vamp
