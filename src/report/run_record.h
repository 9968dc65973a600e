// What one run (of a policy, or against a server) left behind: every turn, step and decision. Times
// count from the run's start. Plain data; the replay driver fills it, summaries and pages are made
// from it.
#pragma once

#include <array>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "core/reclaim_policy.h"
#include "core/request.h"
#include "core/step_stats.h"

namespace vamp {

struct TurnRecord {
  int session = 0, turn = 0;  // from 0
  std::string session_name;
  Micros think = 0;    // before this turn
  RequestStats stats;  // arrival is when the client sent the turn
  std::string error;   // refused or failed; empty: answered

  bool answered() const { return error.empty() && stats.output_tokens > 0; }
  Micros ttft() const { return stats.first_token - stats.arrival; }
  // Mean time of an output token after the first; NaN when there is only one.
  Micros tpot() const {
    return stats.output_tokens > 1
               ? (stats.finished - stats.first_token) / (stats.output_tokens - 1)
               : NAN;
  }
};

// A decision without its lists of candidates.
struct DecisionRow {
  uint64_t id = 0;
  StepId step = 0;
  Micros time = 0;
  RequestId request = 0;
  bool admission = false;
  int gap_blocks = 0, needed_blocks = 0;
  int free_blocks = 0, cached_blocks = 0, total_blocks = 0;
  int host_free_blocks = 0, groups_out = 0, running = 0, waiting = 0;
  double hit_rate = 0;
  ActionKind kind = ActionKind::kDrop;
  // By ActionKind, microseconds of future work; NaN: not considered, infinity: not feasible.
  std::array<double, kNumActionKinds> costs;
  int drop_blocks = 0, demote_segments = 0, give_up_groups = 0, preempted = 0;
  int blocks_won = 0;
  int repeats = 1;          // the same answer step after step: "wait"
  Micros until = 0;         // the last of them
  int reused_tokens = 0;    // dropped by it and asked for again
  Micros first_reuse = -1;  // -1: never
  std::string note;
};
DecisionRow make_decision_row(const DecisionRecord& record);

// What does not change during a run.
struct MemoryFacts {
  size_t dense_bytes = 0, reserve_bytes = 0, group_bytes = 0, block_bytes = 0;
  size_t base_pool_bytes = 0, kv_bytes_per_token = 0;
  int total_groups = 0, missing_groups = 0, max_groups_out = 0;
  int moe_layers = 0, experts_per_layer = 0;
};
MemoryFacts memory_facts(const MemoryLayout& layout);

// The stretch of time whose requests are counted.
struct Window {
  Micros begin = 0, end = 0;
  std::string rule;
  std::string note;  // what the reader must know, e.g. that the rule gave an empty interval
};

struct RunRecord {
  std::string policy;                                         // or the server's name
  std::vector<std::pair<std::string, std::string>> settings;  // where they differ between runs
  // Seen from the client of a server: no steps, decisions, queue times, preemptions and memory. All
  // runs of a report are of one kind.
  bool from_client = false;
  bool cached_known = true;  // false: the server does not say what it had cached
  MemoryFacts memory;
  Window window;
  bool count_first_turns = true;  // false: the controlled sweep
  int planned_turns = 0, planned_sessions = 0;
  Micros duration = 0;
  std::string cut;  // why it ended before its last turn; empty: it did not
  std::vector<TurnRecord> turns;
  std::vector<StepStats> steps;
  std::vector<DecisionRow> decisions;
};

// How many answers of all runs agree, token for token.
struct AnswerComparison {
  int compared = 0;  // turns answered in every run
  int identical = 0;
  std::string first_difference;  // where, or empty
};

// A whole report: runs of the same workload.
struct ReportRecord {
  std::string title;  // model and trace
  std::vector<std::pair<std::string, std::string>> settings;
  std::vector<RunRecord> runs;
  AnswerComparison answers;
  std::vector<std::string> notes;
};

}  // namespace vamp
