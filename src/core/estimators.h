// What PricedPolicy learns while serving. Each estimator is fed plain numbers, holds plain numbers
// and reads no clock. One thread.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <list>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/units.h"
#include "core/cost_model.h"
#include "core/request.h"
#include "model/memory_layout.h"

namespace vamp {

// Exponentially weighted mean: each new sample counts `weight`; the first one counts wholly.
class Ewma {
 public:
  explicit Ewma(double weight, double initial = 0) : weight_(weight), value_(initial) {}
  void add(double sample) {
    value_ = count_++ == 0 ? sample : value_ + weight_ * (sample - value_);
  }
  double value() const { return value_; }
  int64_t count() const { return count_; }

 private:
  double weight_, value_;
  int64_t count_ = 0;
};

// N of them alike.
template <size_t N>
std::array<Ewma, N> ewmas(double weight, double initial = 0) {
  return [&]<size_t... I>(std::index_sequence<I...>) {
    return std::array<Ewma, N>{((void)I, Ewma(weight, initial))...};
  }
  (std::make_index_sequence<N>());
}

// Amount a microsecond, over the last `time_constant` us or so (exponential window).
class RateMeter {
 public:
  explicit RateMeter(Micros time_constant) : time_constant_(time_constant) {}
  void add(double amount, Micros now);
  double rate(Micros now) const;

 private:
  Micros time_constant_, start_ = -1, last_ = 0;
  double sum_ = 0;
};

// Token counts of a step in powers of two: bucket b holds 2^b (and above, up to 2^(b+1) - 1).
inline constexpr int kTokenBuckets = 14;  // 1 ... 8192
int token_bucket(double tokens);

// M1: prefill time. Least squares over steps with prefill, each counting 0.998 of the next, on the
// features (1, m, m · mean context), coefficients not negative. The first sample scales the prior,
// which then stays in the sum as one sample of each coefficient: what the steps don't tell apart
// stays as it was, for any number of steps.
class PrefillEstimator {
 public:
  explicit PrefillEstimator(const price::PrefillCost& prior) : cost_(prior) {}
  // `us`: the step's time less that of decoding and of waiting for staging (a difference of
  // estimates: it may come out as nothing); `context`: sum over its chunks of tokens x mean context
  // before them.
  void add(double tokens, double context, Micros us);
  const price::PrefillCost& cost() const { return cost_; }
  int64_t count() const { return count_; }

 private:
  using Vector = std::array<double, 3>;
  void scale_prior(const Vector& x, Micros us);
  void solve();
  price::PrefillCost cost_;
  // Normal equations of the coefficients in units of `scale_`; the prior's own part is the
  // identity.
  Vector scale_{}, prior_{}, moment_{};
  std::array<Vector, 3> normal_{};
  int64_t count_ = 0;
};

// M2: time of a step without prefill and without staging, by batch size (power-of-two buckets, EWMA
// 1/32, interpolated) plus a part proportional to the context that decodes read.
class DecodeEstimator {
 public:
  // Before anything is measured: base + per_request · batch + per_context_token · context.
  struct Prior {
    Micros base = 5000, per_request = 100, per_context_token = 0;
  };
  explicit DecodeEstimator(const Prior& prior);
  void add(int batch, double context_tokens, Micros us);
  Micros step_us(double batch, double context_tokens) const;

 private:
  double bucket_base(int bucket) const;
  static constexpr int kBuckets = 10;  // 1 ... 512
  Prior prior_;
  std::array<Ewma, kBuckets> base_;  // us less the context's part
  double context_us_;                // us a token of context
  double cov_ = 0, var_ = 0;         // of deviations from the bucket's mean, forgetting 1/256
  std::array<Ewma, kBuckets> context_mean_, us_mean_;
};

// M3: bytes a microsecond of copies of at least 1 MiB, EWMA 1/16.
class LinkEstimator {
 public:
  explicit LinkEstimator(double bytes_per_us) : rate_(1.0 / 16, bytes_per_us) {}
  void add(size_t bytes, Micros us);
  double bytes_per_us() const { return rate_.value(); }

 private:
  Ewma rate_;
};

// M4: how many bytes of given-up experts a step of k tokens activates at boundary n. Starts from
// even routing; learns each expert's share of tokens from counts (half-life 16k tokens, floor
// 1e-6).
class ExpertHeat {
 public:
  // `layout` must outlive this. Experts a token 0: unknown, every given-up expert counts as chosen.
  ExpertHeat(const MemoryLayout& layout, int experts_per_token);
  // Tokens that chose each expert, [moe_layer * experts + expert].
  void add_counts(const std::vector<uint32_t>& counts);
  // Activated bytes seen in one step: corrects for tokens that choose alike (EWMA 1/32).
  void add_activation(int groups_out, double tokens, double activated_bytes);
  // A(n, k) · kappa_k.
  double activated_bytes(int groups_out, double tokens) const;

 private:
  void rebuild();
  double uncorrected(int groups_out, int bucket) const;
  const MemoryLayout& layout_;
  int experts_per_token_;
  std::vector<float> share_;                              // q
  std::array<std::vector<float>, kTokenBuckets> prefix_;  // A by n
  std::array<Ewma, kTokenBuckets> kappa_;
};

// M5: microseconds of copying activated experts that a step hides, by token bucket. A copy that is
// hidden wholly says "at least so much"; one that is waited for says how much (EWMA 1/32). From 0.
class HiddenCopyEstimator {
 public:
  void add(double tokens, double staged_bytes, double bytes_per_us, Micros stall);
  Micros hidden(double tokens) const { return value_[token_bucket(tokens)]; }

 private:
  std::array<Micros, kTokenBuckets> value_{};
};

// How much prefill a turn costs as a function of the pool's size: Mattson's stack distances over
// sessions. A turn's distance is what other sessions have used since this one's last turn; a pool
// of P tokens still holds the part of its prefix that lies within P. It needs no ghosts, and
// answers for the static pool and for every boundary alike, whatever we did meanwhile.
class ReuseCurve {
 public:
  explicit ReuseCurve(int window_turns) : window_(window_turns) {}
  // Its blocks are taken now. What a session's first turn finds cached is others' (`cached_tokens`,
  // a system prompt say): it is in the pool once, whoever uses it.
  void turn_scheduled(SessionId session, int prompt_tokens, int cached_tokens = 0);
  void turn_ended(SessionId session, int context_tokens);

  // Mean over the window of prefill time a turn with a pool of `pool_tokens`.
  Micros prefill_per_turn(double pool_tokens, const price::PrefillCost& cost) const;
  int turns() const { return static_cast<int>(turns_.size()); }
  // Context of all sessions on the stack, tokens.
  double stack_tokens() const { return total_; }

 private:
  struct Entry {
    SessionId session = 0;
    int tokens = 0;
    int shared = 0;  // of them, at the front
    bool running = false;
  };
  struct Turn {
    double before = 0;  // tokens of others used since or in use, and the shared ones, once
    int shared = 0, reusable = 0, prompt = 0;
  };
  static constexpr size_t kMaxSessions = 4096;
  void to_front(SessionId session, int tokens, int shared, bool running);
  size_t window_;
  std::list<Entry> stack_;  // most recently used first
  std::unordered_map<SessionId, std::list<Entry>::iterator> where_;
  std::deque<Turn> turns_;
  double total_ = 0;
};

}  // namespace vamp
