// The contract between the scheduler and the executors: plain data, both ways.
//
// The scheduler makes StepPlan n while step n-1 runs, so a plan may rest on a token that is not
// known yet ("provisional"): the executor keeps every running request's tokens and block table, and
// appends what it samples. Plans carry deltas only. At most two plans are in flight. Results come
// in order.
//
// An executor carries out a plan in this order:
//   1. `reset`: forget all running requests
//   2. `release`: forget those; `edit_tables`: entries of running requests' tables that are now
//      another block (it moves with this plan, or somebody else holds the same content)
//   3. `boundary`: move the HBM partition, all or nothing; zero the frames that join the KV pool
//   4. `move_blocks`: device-to-device copies
//   5. start `demote` and `promote` copies. They may end steps later; a result reports each.
//   Demoted
//      blocks are read as they are before this step's forward pass
//   6. `start`: take new running requests in
//   7. the forward pass over `batch`, then sampling
// A plan with `await_copies` has nothing else in it: its step ends when at least one copy that was
// in flight has ended (its result reports it).
//
// Failure. When the boundary cannot move (a driver call failed and was rolled back), or an executor
// loses a step for another reason, it skips that plan and all later ones until a plan with `reset`
// comes, and returns results with `executed = false` for them; their copies did not happen. The
// scheduler then puts every running request back into the queue and sends `reset`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/request.h"
#include "model/memory_layout.h"

namespace vamp {

using StepId = uint64_t;

struct BoundaryMove {
  int groups_out = 0;  // absolute target: ranks and replays cannot drift apart
  uint64_t order_version = 0;
  std::vector<PoolSlot> map_slots;    // join the KV pool (empty frames, zeroed)
  std::vector<PoolSlot> unmap_slots;  // leave it: no live block touches them any more
};

struct BlockMove {  // device → device
  BlockId from = 0, to = 0;
};
struct BlockCopy {  // device ↔ host
  BlockId device = 0;
  HostBlockId host = 0;
  bool operator==(const BlockCopy&) const = default;
};

// One entry of a running request's block table is replaced.
struct TableEdit {
  RequestSlot slot = 0;
  int index = 0;
  BlockId block = 0;
};

// A request enters the executor's tables: for the first time, or again after a preemption.
struct StartRequest {
  RequestSlot slot = 0;
  RequestId id = 0;
  std::vector<TokenId> tokens;  // all that is known: prompt and, after a preemption, output
  int prompt_tokens = 0;        // how many of `tokens` are prompt
  std::vector<BlockId> blocks;
  SamplingParams sampling;
};

// Work of one running request in this step: compute KV for tokens [first, first + count).
struct BatchEntry {
  RequestSlot slot = 0;
  int first = 0;
  int count = 0;
  bool sample = false;              // the last of them yields an output token
  std::vector<BlockId> new_blocks;  // appended to its block table before the pass
  // So many of them, from the first on, also yield the log-probability of the prompt's token that
  // follows. Each is a row of logits like one that samples: a plan has at most max_num_seqs of
  // both.
  int scored = 0;
};

enum class StagingMode { kAuto, kWholeRegion, kActivated };

struct StepPlan {
  StepId step = 0;
  bool reset = false;
  std::vector<RequestSlot> release;
  std::optional<BoundaryMove> boundary;
  std::vector<BlockMove> move_blocks;
  std::vector<TableEdit> edit_tables;
  std::vector<BlockCopy> demote;   // device → host
  std::vector<BlockCopy> promote;  // host → device
  std::vector<StartRequest> start;
  std::vector<BatchEntry> batch;
  StagingMode staging = StagingMode::kAuto;
  bool await_copies = false;

  int num_tokens() const;
  // Nothing to do at all: not sent to the executor.
  bool empty() const;
};

struct SampledToken {
  RequestSlot slot = 0;
  TokenId token = 0;
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top_logprobs;
  bool invalid = false;  // NaN logits or a failed grammar: the request fails, the others go on
};

// What staging did in one step, on this rank.
struct StagingStats {
  size_t staged_bytes = 0;                // copied from host memory
  size_t activated_bytes = 0;             // of given-up experts that some token chose
  Micros stall = 0;                       // MoE kernels waited for copies
  StagingMode used = StagingMode::kAuto;  // kAuto: nothing was given up
};

struct StepResult {
  StepId step = 0;
  bool executed = true;
  std::string failure;  // why not executed, or empty
  std::vector<SampledToken> tokens;
  std::vector<SampledToken> scored;          // of the batch's `scored` tokens, in its order
  std::vector<BlockCopy> demoted, promoted;  // copies that have ended since the last result
  Micros start = 0, end = 0;                 // of the step, by the executor's clock
  Micros boundary_us = 0;                    // spent on the boundary move
  Micros demote_us = 0, promote_us = 0;      // link time of the copies reported here
  StagingStats staging;
  float experts_per_layer = 0;             // distinct experts chosen, mean over MoE layers
  std::vector<uint16_t> experts_by_layer;  // the same by MoE layer; empty: not known
  // Tokens that chose each expert since the last report, [moe_layer * experts + expert]; empty in
  // most steps.
  std::vector<uint32_t> expert_counts;
};

}  // namespace vamp
