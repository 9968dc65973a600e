#include "core/session_forecast.h"

#include <algorithm>
#include <cmath>
#include <iterator>

namespace vamp {
namespace {

constexpr double kFirstGap = 1e3, kLastGap = 3600e6;

// A hinted turn has come true if it comes within twice the gap and a second.
Micros latest_return(Micros expected_gap) {
  return 2 * expected_gap + kSecond;
}

// Position of a gap on the histogram's axis, 0 ... buckets.
double axis(Micros gap, int buckets) {
  return buckets * std::log(std::clamp(gap, kFirstGap, kLastGap) / kFirstGap) /
         std::log(kLastGap / kFirstGap);
}

}  // namespace

void GapHistogram::turn_ended() {
  for (double& count : count_) count *= kKeep;
  ended_ = ended_ * kKeep + 1;
}

void GapHistogram::returned(Micros gap) {
  count_[std::min(kBuckets - 1, static_cast<int>(axis(gap, kBuckets)))] += 1;
  ++seen_;
}

double GapHistogram::returned_by(Micros gap) const {
  const double position = gap <= 0 ? 0 : axis(gap, kBuckets);
  const int whole = static_cast<int>(position);
  double sum = 0;
  for (int b = 0; b < std::min(whole, kBuckets); ++b) sum += count_[b];
  if (whole < kBuckets) sum += (position - whole) * count_[whole];
  return ended_ > 0 ? std::min(1.0, sum / ended_) : 0;
}

double GapHistogram::return_probability(Micros idle, Micros horizon) const {
  if (seen_ < 32) return idle < 60 * kSecond ? 0.5 : 0.1;
  const double before = returned_by(idle), still = 1 - before;
  if (still <= 1e-6) return 0;
  return std::clamp((returned_by(idle + horizon) - before) / still, 0.0, 1.0);
}

void SessionForecast::turn_started(SessionId id, Micros now) {
  if (sessions_.size() >= kMaxSessions && !sessions_.contains(id)) return;
  Session& session = sessions_[id];
  if (session.ended >= 0 && session.ticket == 0) {
    const Micros gap = now - session.ended;
    gaps_.returned(gap);
    if (session.expected_gap >= 0) {
      hint_kept_.add(gap <= latest_return(session.expected_gap) ? 1 : 0);
    }
  }
  session.released = false;
  if (session.ticket != 0) queue_.erase(session.ticket);
  session.ticket = next_ticket_++;
  ++session.turns;
  queue_[session.ticket] = id;
}

void SessionForecast::turn_ended(SessionId id, const ReuseHint& hint, Micros now) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  queue_.erase(found->second.ticket);
  found->second.ticket = 0;
  found->second.ended = now;
  found->second.released = hint.release;
  const Micros gap = hint.expected_gap.value_or(-1);
  found->second.expected_gap = std::isfinite(gap) ? gap : -1;
  gaps_.turn_ended();
}

double SessionForecast::idle_return_probability(const Session& session, Micros now,
                                                Micros horizon) const {
  if (session.released) return 0;
  const Micros idle = now - session.ended;
  const double p = gaps_.return_probability(idle, horizon);
  if (session.expected_gap < 0 || idle > latest_return(session.expected_gap)) return p;
  // Until it is overdue; the longer it still takes, the more others could use the room.
  const Micros still = std::max(0.0, session.expected_gap - idle);
  const double hinted = 1 / (1 + still / std::max(horizon, 1.0));
  return hint_kept_.value() * hinted + (1 - hint_kept_.value()) * p;
}

double SessionForecast::reuse_probability(SessionId id, Micros now, Micros horizon,
                                          Micros service) const {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return gaps_.return_probability(0, horizon);
  const Session& session = found->second;
  const double ahead = static_cast<double>(
      session.ticket == 0 ? queue_.size()
                          : std::distance(queue_.begin(), queue_.find(session.ticket)));
  const double p = session.ticket != 0 ? 1 : idle_return_probability(session, now, horizon);
  // The later the use, the more others could have used the room meanwhile.
  return p / (1 + ahead * service / std::max(horizon, 1.0));
}

}  // namespace vamp
