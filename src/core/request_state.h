// A request in the scheduler's hands.
#pragma once

#include <limits>
#include <vector>

#include "core/block_manager.h"
#include "core/prefix_key.h"
#include "core/request.h"

namespace vamp {

enum class RequestStatus { kUnused, kWaiting, kRunning };

// Three lengths of one request, known <= planned <= known + 2:
//   tokens.size()             prompt and output that are known
//   planned_length()          the same with the tokens that plans under way will sample
//   computed                  tokens whose KV is in the table, or will be by plans under way
struct RequestState {
  uint64_t serial = 0;  // of its add(); tells reuses of this object apart
  RequestStatus status = RequestStatus::kUnused;
  RequestInput input;  // its prompt has gone into `tokens`
  SessionId session = 0;
  std::vector<TokenId> tokens;
  int pending = 0;  // tokens that plans under way will sample
  int computed = 0;

  BlockTable table;
  std::vector<PrefixKey> keys;  // of the full blocks of `tokens`, as far as needed
  int published = 0;            // blocks of the table that have a name
  int scored = 0;               // the prompt's tokens whose log-probability is known
  int sent_blocks = 0;          // blocks of the table that the executor knows
  StepId last_step = 0;         // the latest plan with a row of it

  // While running.
  RequestSlot slot = -1;
  StepId start_step = 0;  // the plan that told the executor; 0: none yet
  int arrived = 0;        // blocks of the table known to be readable ...
  int arriving_end = 0;   // ... of so many that may be on their way from the host tier

  // While waiting.
  HostBlockId swapped = kNoId;  // its partly filled last block in the host tier
  int swapped_tokens = 0;       // computed when it was preempted
  StepId swap_step = 0;
  int overtaken = 0;                 // requests that were let in before it since it did not fit
  Micros unfit_since = -1;           // -1: it has not been tried, or fits
  struct Attempt {                   // the last one to let it in that found no room
    Micros at = -1;                  // -1: none
    int available = 0, matched = 0;  // blocks free or cached then; blocks of its prefix
  } no_room;
  uint64_t wait_decision = 0;  // the latest answer it got was this one: wait; 0: none
  bool preempted = false;
  Micros waiting_since = 0;
  bool admitted_before = false;

  RequestStats stats;

  int planned_length() const { return static_cast<int>(tokens.size()) + pending; }
  int output_planned() const { return planned_length() - stats.prompt_tokens; }
  // Some are yet to be: until then it computes its prompt itself, whatever is cached.
  bool to_score() const {
    return input.sampling.prompt_logprobs >= 0 && scored + 1 < stats.prompt_tokens;
  }
  bool sampling_planned() const { return output_planned() >= input.sampling.max_tokens; }
};

}  // namespace vamp
