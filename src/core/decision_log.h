// Decisions of the policy and what came of them.
#pragma once

#include <cstdint>
#include <deque>

#include "core/reclaim_policy.h"
#include "core/scheduler.h"

namespace vamp {

// Reports each decision when made, and again whenever content that it dropped is asked for, and
// when the last of its repetitions is over. Remembers the latest kRemembered. One thread.
class DecisionLog {
 public:
  explicit DecisionLog(const SchedulerListener& listener) : listener_(listener) {}

  uint64_t next_id() const { return next_; }
  uint64_t count() const { return next_ - 1; }
  // `record.id` is next_id(). The caller's buffers stay its own.
  void made(DecisionRecord& record);
  // The same answer again as decision `id`, which was "wait" and nothing else. False: `id` is none
  // that is remembered, this is a new decision.
  bool repeated(uint64_t id, Micros now);
  // No more repetitions of `id`: reports it if there were any.
  void ended(uint64_t id);
  // `tokens` of content that decision `id` dropped must be computed again.
  void reused(uint64_t id, int tokens, Micros now);

 private:
  static constexpr size_t kRemembered = 1024;
  DecisionRecord* find(uint64_t id);
  const SchedulerListener& listener_;
  uint64_t next_ = 1;
  std::deque<DecisionRecord> latest_;
};

}  // namespace vamp
