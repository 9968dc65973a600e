// Which experts do tokens choose? Expected numbers only: how many distinct experts of a layer a
// step of k tokens touches, and how many of those that lie in the layer's tail.
#pragma once

#include <cstdint>
#include <vector>

namespace vamp {

struct RoutingConfig {
  // Popularity of experts: even; by rank^-zipf; or `cold_share` of them at `cold_popularity` of the
  // even share, the others alike.
  double zipf = 0;
  double cold_share = 0, cold_popularity = 1;
  bool cold_last = true;  // sorted, so that the coldest are the tail; false: shuffled
  uint64_t seed = 1;      // of the shuffle
};

// Immutable after construction. All layers are alike.
class RoutingModel {
 public:
  RoutingModel(const RoutingConfig& config, int experts, int experts_per_token);

  // Expected distinct experts among k tokens, of the last `tail` experts (all: tail = experts).
  // Tokens choose independently.
  double distinct(double tokens, int tail) const;
  double distinct(double tokens) const { return distinct(tokens, experts_); }
  // Probability that a token chooses expert e: sums to experts_per_token.
  const std::vector<double>& share() const { return share_; }
  int experts() const { return experts_; }

 private:
  int experts_;
  std::vector<double> share_;
  std::vector<double> knots_;                // token counts
  std::vector<std::vector<float>> by_tail_;  // [knot][tail]
};

}  // namespace vamp
