// A closed loop of sessions against the real scheduler and a simulated machine, under a virtual
// clock: the test bench for policies.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "core/make_policy.h"
#include "core/scheduler.h"
#include "sim/sim_executor.h"

namespace vamp {

// One session's turns. Prompts are made up: each turn's is the conversation so far, replies
// included, cut or continued with new tokens to the given length.
struct SessionScript {
  struct Turn {
    int prompt_tokens = 0, output_tokens = 0;
    Micros think = 0;  // before this turn, after the one before has ended
  };
  std::vector<Turn> turns;
  int shared_prefix_tokens = 0;  // the same for all sessions
};

// The controlled sweep: `sessions` sessions that grow by equal steps from first_share of the end.
struct GrowthOptions {
  int sessions = 8, turns = 12;
  int final_tokens = 8000;
  double first_share = 0.4;
  int output_tokens = 128;
  Micros think = 2 * kSecond;
  double jitter = 0.2;  // of think times and growth, relative, uniform
  uint64_t seed = 1;
};
std::vector<SessionScript> growing_sessions(const GrowthOptions& options);

struct ClosedLoopOptions {
  std::string policy = "priced";
  int concurrency = 0;  // sessions alive at once; 0: all
  SchedulerConfig scheduler;
  SimConfig sim;
  PolicyConfig policies;
  bool check_invariants = false;  // after every step
};

struct ClosedLoopResult {
  int turns = 0;
  Micros makespan = 0;
  double requests_per_s = 0, output_tokens_per_s = 0;
  // Of turns behind a session's first.
  Micros ttft_mean = 0, ttft_p50 = 0, ttft_p90 = 0, ttft_p99 = 0, queue_mean = 0;
  Micros tpot_mean = 0, tpot_p90 = 0;  // of all turns
  double hit_rate_warm = 0;  // of prompt tokens of turns behind the first, device and host
  double preemptions_per_1000 = 0;
  double mean_groups_out = 0;  // over time
  double staged_bytes = 0, promoted_bytes = 0;
  double prefill_tokens = 0;
  std::array<int, kNumActionKinds> decisions{};
  uint64_t steps = 0, hash = 0;  // of every result, in order: equal runs are equal to the bit
};

// Runs all sessions to their end. Deterministic. Throws Error if a request is refused.
ClosedLoopResult run_closed_loop(const ModelConfig& model, const MemoryLayout& layout,
                                 const std::vector<SessionScript>& sessions,
                                 const ClosedLoopOptions& options);

// PolicyConfig whose first values fit the machine: what an engine measures at start.
PolicyConfig policy_config_for(const ModelConfig& model, const MemoryLayout& layout,
                               const SimConfig& sim);

}  // namespace vamp
