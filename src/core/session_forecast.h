// When will a session's prefix be asked for again? Waiting turns are known (they stand in the
// queue); idle sessions are forecast from the gaps between a turn's end and the next turn's
// arrival.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <unordered_map>

#include "base/units.h"
#include "core/estimators.h"
#include "core/request.h"

namespace vamp {

// Gaps in 24 logarithmic buckets from 1 ms to 1 h, counts decayed by 0.999 a turn. Turns that are
// never followed by another lower the probability, as the bucket "never" would.
class GapHistogram {
 public:
  void turn_ended();
  void returned(Micros gap);
  // P(return within the next `horizon` | idle for `idle`): (G(t + T) - G(t)) / (1 - G(t)). Until 32
  // gaps have been seen: 0.5 if idle for less than 60 s, else 0.1.
  double return_probability(Micros idle, Micros horizon) const;

 private:
  double returned_by(Micros gap) const;  // G
  static constexpr int kBuckets = 24;
  static constexpr double kKeep = 0.999;
  std::array<double, kBuckets> count_{};
  double ended_ = 0;
  int64_t seen_ = 0;
};

// Owns what is known about each session. One thread; never reads a clock.
class SessionForecast {
 public:
  void turn_started(SessionId session, Micros now);
  // `hint`: what the application says of the next turn. A session that is released is not expected
  // again; an expected gap is believed as far as such hints have come true.
  void turn_ended(SessionId session, const ReuseHint& hint, Micros now);

  // Probability that the session's prefix is used before it would have been evicted anyway.
  // `horizon`: how long a block lives from its last use to its eviction, us; `service`: mean time
  // between two turns' starts of service, us. A turn that waits behind i others is served in i ·
  // service.
  double reuse_probability(SessionId session, Micros now, Micros horizon, Micros service) const;
  int waiting_or_running() const { return static_cast<int>(queue_.size()); }

 private:
  struct Session {
    uint64_t ticket = 0;  // place in the queue of turns that wait or run; 0: idle
    Micros ended = -1;
    Micros expected_gap = -1;  // hinted; -1: not
    bool released = false;
    int turns = 0;
  };
  double idle_return_probability(const Session& session, Micros now, Micros horizon) const;
  static constexpr size_t kMaxSessions = 65536;
  std::unordered_map<SessionId, Session> sessions_;
  std::map<uint64_t, SessionId> queue_;  // by arrival
  uint64_t next_ticket_ = 1;
  GapHistogram gaps_;
  Ewma hint_kept_{1.0 / 32, 0.9};  // hinted turns that came when they were said to
};

}  // namespace vamp
