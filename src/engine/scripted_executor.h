// An executor for tests of the loop: every step takes the same time, tokens are a hash of the
// request's id and the position, and a step can be made to throw.
#pragma once

#include <deque>
#include <map>

#include "base/clock.h"
#include "base/random.h"
#include "core/executor.h"

namespace vamp {

class ScriptedExecutor final : public Executor {
 public:
  ScriptedExecutor(Clock& clock, Micros step_time) : clock_(clock), step_time_(step_time) {}

  void submit(StepPlan plan) override {
    most_in_flight = std::max(most_in_flight, in_flight() + 1);
    StepResult result;
    result.step = plan.step;
    for (const StartRequest& start : plan.start) rows_[start.slot] = {start.id, start.sampling};
    for (const BatchEntry& entry : plan.batch) {
      if (!entry.sample) continue;
      SampledToken token;
      token.slot = entry.slot;
      const Row& row = rows_.at(entry.slot);
      token.token = expected_token(row.id, entry.first + entry.count);
      for (int k = 0; k < row.sampling.logprobs; ++k) {
        token.top_logprobs.emplace_back(token.token + k, -1.0f - static_cast<float>(k));
      }
      result.tokens.push_back(token);
    }
    result.demoted = plan.demote;
    result.promoted = plan.promote;
    result.start = std::max(clock_.now(), last_end_);
    result.end = last_end_ = result.start + step_time_;
    results_.push_back(std::move(result));
  }
  StepResult wait() override {
    StepResult result = std::move(results_.front());
    results_.pop_front();
    clock_.sleep_until(result.end);
    return result;
  }
  int in_flight() const override { return static_cast<int>(results_.size()); }

  static TokenId expected_token(RequestId id, int position) {
    return 3 +
           static_cast<TokenId>(Random(id * 1000003 + static_cast<uint64_t>(position)).below(500));
  }

  int most_in_flight = 0;

 private:
  Clock& clock_;
  Micros step_time_;
  Micros last_end_ = 0;
  struct Row {
    RequestId id = 0;
    SamplingParams sampling;
  };
  std::map<RequestSlot, Row> rows_;
  std::deque<StepResult> results_;
};

}  // namespace vamp
