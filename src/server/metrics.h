// What /metrics shows: vLLM's names and labels, so that dashboards and routers need no change, and
// ours under `vamp:`.
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "core/reclaim_policy.h"
#include "core/step_stats.h"

namespace vamp {

struct MetricsOptions {
  std::string model_name;
  int max_model_len = 0;  // for the buckets of token counts
};

// Any thread; no function waits for anything but a short lock. Nothing is shown before start().
class Metrics {
 public:
  Metrics();
  ~Metrics();

  // Once the model is known.
  void start(const MetricsOptions& options, const MemoryLayout& layout,
             const SchedulerConfig& scheduler, const std::string& policy);

  void observe_step(const StepStats& step);
  void observe_request(const RequestStats& stats, FinishReason reason);
  void observe_token_gap(Micros time);
  void observe_decision(const DecisionRecord& record);

  // As of the last step.
  struct Load {
    int running = 0;     // requests
    int64_t tokens = 0;  // of KV that they hold, in whole blocks
  };
  Load load() const;

  // Prometheus' text format. `requests`: waiting and running.
  std::string text(int requests);

  // A table of names, types and help in Markdown, for docs/metrics.md.
  static std::string table();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::atomic<bool> started_ = false;
};

}  // namespace vamp
