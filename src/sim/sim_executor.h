// SimExecutor: turns plans into elapsed time by a latency model. Under a VirtualClock hours of
// serving run in seconds; the scheduler, the cache and the policy are the real ones. Under a real
// clock it is a stand-in for a machine that is not there.
#pragma once

#include <deque>
#include <memory>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "core/executor.h"
#include "sim/latency_model.h"

namespace vamp {

struct SimConfig {
  MachineProfile machine;
  RoutingConfig routing;
  int expert_count_interval = 64;  // steps between two reports of expert counts; 0: never
  Micros fixed_step = 0;           // every step takes so long; 0: what the latency model says
  double failure_rate = 0;         // share of plans lost, to test recovery
  uint64_t seed = 1;               // of failures
};

// Owns the simulated tables, link queues and the end of the last step. Used from the engine's
// thread only; never sleeps except in wait(). Tokens are a hash of the prompt and the position:
// they depend on nothing but the request. The same plans at the same times give the same results to
// the bit.
class SimExecutor final : public Executor {
 public:
  // `layout` and `clock` must outlive this. Starts at layout.min_groups_out.
  SimExecutor(const ModelConfig& model, const MemoryLayout& layout, const SimConfig& config,
              Clock& clock);

  void submit(StepPlan plan) override;
  StepResult wait() override;
  int in_flight() const override { return static_cast<int>(results_.size()); }

 private:
  struct Row {  // a running request
    uint64_t prompt_hash = 0;
    int tokens = 0;                         // known
    std::unique_ptr<TokenMatcher> matcher;  // of a request with a grammar
  };
  // Copies in one direction, first come first served.
  struct Link {
    std::deque<BlockCopy> queue;
    std::vector<BlockCopy> done;
    Micros spent = 0;  // on the copy at the head
    Micros busy = 0;   // on those in `done`
    Micros per_block = 0;
  };

  TokenId constrained_token(TokenMatcher& matcher, uint64_t hash) const;
  StepShape take_batch(const StepPlan& plan, StepResult& result);
  Micros move_boundary(const StepPlan& plan);
  // Lets the link work from `from` to `to`, of which `taken` us are spent on staging.
  static void advance(Link& link, Micros from, Micros to, Micros taken);
  // Time until the link's next copy ends, if alone.
  static Micros next_end(const Link& link);
  void report_copies(StepResult& result);
  void count_experts(double tokens, StepResult& result);

  const MemoryLayout& layout_;
  SimConfig config_;
  Clock& clock_;
  LatencyModel latency_;
  Random random_;
  int vocab_size_;
  std::unordered_map<RequestSlot, Row> rows_;
  Link up_, down_;
  std::deque<StepResult> results_;
  Micros last_end_ = 0;
  int groups_out_;
  bool failed_ = false;
  int steps_since_counts_ = 0;
  double tokens_since_counts_ = 0;
};

}  // namespace vamp
