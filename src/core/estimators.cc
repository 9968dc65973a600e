#include "core/estimators.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace vamp {

// ---- RateMeter

void RateMeter::add(double amount, Micros now) {
  if (start_ < 0) start_ = last_ = now;
  sum_ = sum_ * std::exp(-(now - last_) / time_constant_) + amount;
  last_ = now;
}

double RateMeter::rate(Micros now) const {
  if (start_ < 0) return 0;
  // The window's weight: less than the time constant while it is not yet full.
  const double weight = time_constant_ * -std::expm1(-std::max(now - start_, 1.0) / time_constant_);
  return sum_ * std::exp(-(now - last_) / time_constant_) / std::max(weight, 1e-3 * time_constant_);
}

int token_bucket(double tokens) {
  int bucket = 0;
  while (bucket + 1 < kTokenBuckets && tokens >= static_cast<double>(2 << bucket)) ++bucket;
  return bucket;
}

// ---- PrefillEstimator

void PrefillEstimator::scale_prior(const Vector& x, Micros us) {
  const double predicted = cost_.c0 + cost_.c1 * x[1] + cost_.c2 * x[2];
  // A first step that came out as nothing must not make the prior nothing.
  const double scale = predicted > 0 ? std::max(us / predicted, 0.05) : 1;
  cost_ = {cost_.c0 * scale, cost_.c1 * scale, cost_.c2 * scale};
  const Vector mean = {cost_.c0, cost_.c1, cost_.c2};
  for (int i = 0; i < 3; ++i) {
    scale_[i] = std::max(mean[i], x[i] > 0 ? 0.1 * us / x[i] : 0);
    prior_[i] = scale_[i] > 0 ? mean[i] / scale_[i] : 0;
  }
}

void PrefillEstimator::add(double tokens, double context, Micros us) {
  if (tokens <= 0) return;
  us = std::max(0.0, us);
  const Vector x = {1, tokens, context};
  if (count_++ == 0) return scale_prior(x, us);
  const double predicted = cost_.c0 + cost_.c1 * tokens + cost_.c2 * context;
  // A step's error is a tenth of what it should take or took: one that came out as nothing must not
  // weigh more than others.
  const double error = 0.1 * std::max({us, predicted, 1.0});
  constexpr double kForget = 0.998;
  for (int i = 0; i < 3; ++i) {
    const double zi = scale_[i] * x[i] / error;
    for (int j = 0; j < 3; ++j) {
      normal_[i][j] = kForget * normal_[i][j] + zi * scale_[j] * x[j] / error;
    }
    moment_[i] = kForget * moment_[i] + zi * us / error;
  }
  solve();
}

// The least squares solution without negative coefficients: those that come out negative are 0, and
// the others are solved for again.
void PrefillEstimator::solve() {
  std::array<bool, 3> used = {true, true, true};
  Vector w{};
  for (bool again = true; again;) {
    std::array<Vector, 3> a = normal_;
    Vector b = moment_;
    for (int i = 0; i < 3; ++i) {
      a[i][i] += 1;
      b[i] += prior_[i];
      for (int j = 0; j < 3; ++j) {
        if (i != j && (!used[i] || !used[j])) a[i][j] = 0;
      }
      if (!used[i]) b[i] = 0;
    }
    // Positive definite: elimination without pivoting.
    for (int k = 0; k < 3; ++k) {
      for (int i = k + 1; i < 3; ++i) {
        const double factor = a[i][k] / a[k][k];
        for (int j = k; j < 3; ++j) a[i][j] -= factor * a[k][j];
        b[i] -= factor * b[k];
      }
    }
    for (int k = 2; k >= 0; --k) {
      w[k] = b[k];
      for (int j = k + 1; j < 3; ++j) w[k] -= a[k][j] * w[j];
      w[k] /= a[k][k];
    }
    again = false;
    for (int i = 0; i < 3; ++i) {
      if (w[i] < 0) used[i] = false, again = true;
    }
  }
  cost_ = {w[0] * scale_[0], w[1] * scale_[1], w[2] * scale_[2]};
}

// ---- DecodeEstimator

namespace {
int batch_bucket(double batch, int buckets) {
  int bucket = 0;
  while (bucket + 1 < buckets && batch >= static_cast<double>(2 << bucket)) ++bucket;
  return bucket;
}
}  // namespace

DecodeEstimator::DecodeEstimator(const Prior& prior)
    : prior_(prior),
      base_(ewmas<kBuckets>(1.0 / 32)),
      context_us_(prior.per_context_token),
      context_mean_(base_),
      us_mean_(base_) {}

void DecodeEstimator::add(int batch, double context_tokens, Micros us) {
  if (batch <= 0 || us <= 0) return;
  const int bucket = batch_bucket(batch, kBuckets);
  if (us_mean_[bucket].count() > 8) {
    const double dc = context_tokens - context_mean_[bucket].value();
    const double du = us - us_mean_[bucket].value();
    constexpr double kKeep = 1 - 1.0 / 256;
    cov_ = kKeep * cov_ + dc * du;
    var_ = kKeep * var_ + dc * dc;
    // The prior counts as much as deviations of 1,000 tokens over 16 steps.
    constexpr double kPriorWeight = 16e6;
    context_us_ =
        std::max(0.0, (cov_ + kPriorWeight * prior_.per_context_token) / (var_ + kPriorWeight));
  }
  us_mean_[bucket].add(us);
  context_mean_[bucket].add(context_tokens);
  base_[bucket].add(us - context_us_ * context_tokens);
}

double DecodeEstimator::bucket_base(int bucket) const {
  if (base_[bucket].count() > 0) return base_[bucket].value();
  // Nearest measured bucket, moved along by the prior's slope; else the prior.
  for (int d = 1; d < kBuckets; ++d) {
    for (const int other : {bucket - d, bucket + d}) {
      if (other < 0 || other >= kBuckets || base_[other].count() == 0) continue;
      return base_[other].value() + prior_.per_request * ((1 << bucket) - (1 << other));
    }
  }
  return prior_.base + prior_.per_request * (1 << bucket);
}

Micros DecodeEstimator::step_us(double batch, double context_tokens) const {
  const int low = batch_bucket(batch, kBuckets), high = std::min(low + 1, kBuckets - 1);
  const double share = high == low ? 0 : std::clamp((batch - (1 << low)) / (1 << low), 0.0, 1.0);
  const double base = (1 - share) * bucket_base(low) + share * bucket_base(high);
  return std::max(1.0, base + context_us_ * context_tokens);
}

// ---- LinkEstimator

void LinkEstimator::add(size_t bytes, Micros us) {
  if (bytes >= kMiB && us > 0) rate_.add(static_cast<double>(bytes) / us);
}

// ---- ExpertHeat

ExpertHeat::ExpertHeat(const MemoryLayout& layout, int experts_per_token)
    : layout_(layout),
      experts_per_token_(experts_per_token),
      share_(static_cast<size_t>(layout.moe_layers) * layout.experts,
             experts_per_token > 0 ? std::min(1.0f, static_cast<float>(experts_per_token) /
                                                        std::max(1, layout.experts))
                                   : 1.0f),
      kappa_(ewmas<kTokenBuckets>(1.0 / 32, 1)) {
  rebuild();
}

void ExpertHeat::add_counts(const std::vector<uint32_t>& counts) {
  if (counts.empty() || experts_per_token_ <= 0) return;
  VAMP_CHECK(counts.size() == share_.size(), "{} expert counts for {} experts", counts.size(),
             share_.size());
  const size_t experts = layout_.experts;
  for (int layer = 0; layer < layout_.moe_layers; ++layer) {
    const uint32_t* count = counts.data() + layer * experts;
    double choices = 0;
    for (size_t e = 0; e < experts; ++e) choices += count[e];
    const double tokens = choices / experts_per_token_;
    if (tokens <= 0) continue;
    constexpr double kHalfLifeTokens = 16384;
    const double keep = std::exp2(-tokens / kHalfLifeTokens);
    float* share = share_.data() + layer * experts;
    for (size_t e = 0; e < experts; ++e) {
      const double seen = std::min(1.0, count[e] / tokens);
      share[e] = static_cast<float>(std::max(1e-6, keep * share[e] + (1 - keep) * seen));
    }
  }
  rebuild();
}

void ExpertHeat::rebuild() {
  const size_t groups = layout_.order.groups.size();
  for (auto& prefix : prefix_) prefix.assign(groups + 1, 0);
  const auto shard_bytes = static_cast<double>(layout_.shard_bytes());
  for (size_t n = 0; n < groups; ++n) {
    const GroupId id = layout_.order.groups[n];
    std::array<double, kTokenBuckets> activated{};
    const int first = id.group * layout_.shards_per_group;
    const int last = std::min(first + layout_.shards_per_group, layout_.experts);
    for (int e = first; e < last; ++e) {
      double missed = 1 - share_[static_cast<size_t>(id.moe_layer) * layout_.experts + e];
      for (int b = 0; b < kTokenBuckets; ++b, missed *= missed) activated[b] += 1 - missed;
    }
    for (int b = 0; b < kTokenBuckets; ++b)
      prefix_[b][n + 1] = prefix_[b][n] + static_cast<float>(activated[b] * shard_bytes);
  }
}

double ExpertHeat::uncorrected(int groups_out, int bucket) const {
  const size_t n = std::min<size_t>(std::max(groups_out, 0), prefix_[bucket].size() - 1);
  return prefix_[bucket][n];
}

double ExpertHeat::activated_bytes(int groups_out, double tokens) const {
  const int low = token_bucket(tokens), high = std::min(low + 1, kTokenBuckets - 1);
  const double share = high == low ? 0 : std::clamp(tokens / (1 << low) - 1, 0.0, 1.0);
  return (1 - share) * uncorrected(groups_out, low) * kappa_[low].value() +
         share * uncorrected(groups_out, high) * kappa_[high].value();
}

void ExpertHeat::add_activation(int groups_out, double tokens, double activated_bytes) {
  const int low = token_bucket(tokens), high = std::min(low + 1, kTokenBuckets - 1);
  const double share = high == low ? 0 : std::clamp(tokens / (1 << low) - 1, 0.0, 1.0);
  const double foretold =
      (1 - share) * uncorrected(groups_out, low) + share * uncorrected(groups_out, high);
  if (foretold > 0) kappa_[low].add(activated_bytes / foretold);
}

// ---- HiddenCopyEstimator

void HiddenCopyEstimator::add(double tokens, double staged_bytes, double bytes_per_us,
                              Micros stall) {
  if (staged_bytes <= 0) return;
  const Micros copy = staged_bytes / bytes_per_us;
  Micros& value = value_[token_bucket(tokens)];
  constexpr double kWhollyHidden = 0.02, kWeight = 1.0 / 32;
  if (stall > kWhollyHidden * copy) {
    value += kWeight * (std::max(0.0, copy - stall) - value);
  } else {
    value = std::max(value, copy);
  }
}

// ---- ReuseCurve

void ReuseCurve::to_front(SessionId session, int tokens, int shared, bool running) {
  const auto found = where_.find(session);
  if (found == where_.end()) {
    stack_.push_front({session, tokens, shared, running});
    where_[session] = stack_.begin();
    total_ += tokens;
    if (stack_.size() > kMaxSessions) {
      total_ -= stack_.back().tokens;
      where_.erase(stack_.back().session);
      stack_.pop_back();
    }
    return;
  }
  Entry& entry = *found->second;
  total_ += tokens - entry.tokens;
  entry.tokens = tokens;
  entry.shared = std::min(entry.shared, tokens);
  entry.running = running;
  stack_.splice(stack_.begin(), stack_, found->second);
}

void ReuseCurve::turn_scheduled(SessionId session, int prompt_tokens, int cached_tokens) {
  Turn turn;
  turn.prompt = prompt_tokens;
  const auto found = where_.find(session);
  const int shared = found == where_.end() ? cached_tokens : found->second->shared;
  turn.shared = std::min(shared, prompt_tokens);
  if (found != where_.end()) {
    turn.reusable = std::min(found->second->tokens, prompt_tokens);
    turn.before = turn.shared;
    bool since = true;  // on this side of the stack: used since this session's last turn
    for (auto it = stack_.begin(); it != stack_.end(); ++it) {
      if (it == found->second) {
        since = false;
      } else if (since || it->running) {
        turn.before += it->tokens - it->shared;
      }
    }
  }
  turns_.push_back(turn);
  if (turns_.size() > window_) turns_.pop_front();
  to_front(session, prompt_tokens, turn.shared, true);
}

void ReuseCurve::turn_ended(SessionId session, int context_tokens) {
  to_front(session, context_tokens, 0, false);
}

Micros ReuseCurve::prefill_per_turn(double pool_tokens, const price::PrefillCost& cost) const {
  if (turns_.empty()) return 0;
  Micros total = 0;
  for (const Turn& turn : turns_) {
    const double own = std::max(0, turn.reusable - turn.shared);
    const double cached = turn.shared + std::clamp(pool_tokens - turn.before, 0.0, own);
    total += price::prefill(cost, cached, turn.prompt - cached);
  }
  return total / static_cast<double>(turns_.size());
}

}  // namespace vamp
