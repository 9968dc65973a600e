// What /dashboard shows: the engine's last minutes, second by second, its decisions and requests.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace vamp {

// Keeps a bounded number of each. Told on the engine's thread, read on any; holds its lock for a
// copy at most.
class Activity final : public EngineListener {
 public:
  static constexpr size_t kMaxSeconds = 900, kMaxDecisions = 200, kMaxRequests = 300;

  // Nothing is recorded before.
  void start(const MemoryLayout& layout, const SchedulerConfig& scheduler, Micros now);

  void on_step(const StepStats& step) override;
  void on_finished(const RequestEvent& event, const RequestStats& stats) override;
  void on_decision(const DecisionRecord& record) override;
  // A later record replaces an earlier one of its id.
  void on_decision_result(const DecisionRecord& record) override { on_decision(record); }

  // What a reader has seen so far.
  struct Position {
    int64_t second = -1;
    uint64_t change = 0;  // decisions and requests
  };
  // What came after `after`, and the new position. Decisions and requests only if `single`: they
  // say what individual requests did. Times in seconds since the engine's start, prices in
  // microseconds.
  nlohmann::json since(const Position& after, Micros now, bool single) const;

 private:
  // One second. Gauges are the last step's, sums are over the second.
  struct Second {
    int64_t second = 0;
    SchedulerStats scheduler;
    int bank_groups = 0;
    int64_t prefill_tokens = 0, decode_tokens = 0;
    size_t staged_bytes = 0, demoted_bytes = 0, promoted_bytes = 0;
    Micros stall = 0;
    std::vector<float> ttft, tpot;  // of requests that ended, in seconds
  };
  struct Decision {
    uint64_t change = 0;
    DecisionRecord record;
  };
  struct Request {
    uint64_t change = 0;
    RequestStats stats;
    FinishReason reason = FinishReason::kStop;
  };

  Second& second_at(Micros time);
  nlohmann::json row(const Second& second) const;
  nlohmann::json seconds_since(int64_t after, int64_t last) const;

  mutable std::mutex mutex_;
  bool started_ = false;
  MemoryLayout layout_;
  Micros start_ = 0;
  std::deque<Second> seconds_;
  std::deque<Decision> decisions_;
  std::deque<Request> requests_;
  uint64_t changes_ = 0;
};

}  // namespace vamp
