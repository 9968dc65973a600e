#include "sim/routing_model.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/random.h"
#include "core/cost_model.h"

namespace vamp {
namespace {

std::vector<double> popularity(const RoutingConfig& config, int experts) {
  std::vector<double> weight(experts, 1.0);
  for (int e = 0; e < experts; ++e) {
    if (config.zipf > 0) weight[e] = std::pow(e + 1.0, -config.zipf);
    if (config.cold_share > 0 && e >= experts - static_cast<int>(config.cold_share * experts)) {
      weight[e] = config.cold_popularity;
    }
  }
  if (!config.cold_last) {
    Random random(config.seed);
    for (int e = experts - 1; e > 0; --e) std::swap(weight[e], weight[random.below(e + 1)]);
  }
  return weight;
}

// Scales weights to probabilities that sum to `sum`, none above 1.
std::vector<double> to_shares(std::vector<double> weight, double sum) {
  std::vector<double> share(weight.size(), 0);
  std::vector<bool> full(weight.size(), false);
  for (double left = sum;;) {
    double total = 0;
    for (size_t e = 0; e < weight.size(); ++e) total += full[e] ? 0 : weight[e];
    bool again = false;
    for (size_t e = 0; e < weight.size(); ++e) {
      if (full[e]) continue;
      share[e] = weight[e] / total * left;
      if (share[e] > 1) full[e] = again = true;
    }
    if (!again) return share;
    left = sum;
    for (size_t e = 0; e < weight.size(); ++e) {
      if (full[e]) share[e] = 1, left -= 1;
    }
  }
}

}  // namespace

RoutingModel::RoutingModel(const RoutingConfig& config, int experts, int experts_per_token)
    : experts_(experts) {
  VAMP_CHECK(experts >= experts_per_token && experts_per_token > 0, "{} of {} experts",
             experts_per_token, experts);
  share_ = to_shares(popularity(config, experts), experts_per_token);
  for (double k = 0; k <= 32; ++k) knots_.push_back(k);
  while (knots_.back() < 16384) knots_.push_back(std::ceil(knots_.back() * 1.25));
  for (const double k : knots_) {
    std::vector<float> tail(experts + 1, 0);
    double sum = 0;
    for (int m = 1; m <= experts; ++m) {
      sum += price::activation_probability(share_[experts - m], k);
      tail[m] = static_cast<float>(sum);
    }
    by_tail_.push_back(std::move(tail));
  }
}

double RoutingModel::distinct(double tokens, int tail) const {
  const auto above = std::upper_bound(knots_.begin(), knots_.end(), tokens);
  if (above == knots_.end()) return by_tail_.back()[tail];
  const size_t high = above - knots_.begin(), low = high - 1;
  const double part = (tokens - knots_[low]) / (knots_[high] - knots_[low]);
  return (1 - part) * by_tail_[low][tail] + part * by_tail_[high][tail];
}

}  // namespace vamp
