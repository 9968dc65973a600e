// The executor's side of the running requests: tokens, block table and sampling parameters, one row
// a slot, kept from the plans' deltas.
//
// Used by the executor's worker thread only. It trusts the scheduler: a plan that does not fit the
// table is a broken invariant. It does not trust tokens: those outside the vocabulary mark the row
// invalid, which fails that request and no other.
#pragma once

#include <utility>
#include <vector>

#include "core/step_plan.h"
#include "kernels/ops.h"

namespace vamp {

struct RunningRequest {
  bool active = false;
  bool valid = true;  // false: some token lies outside the vocabulary; what it samples is invalid
  RequestId id = 0;
  std::vector<TokenId> tokens;  // prompt and output, the newest sampled token included
  int prompt_tokens = 0;
  std::vector<BlockId> blocks;  // block i holds tokens [i * block_tokens, ...)
  SamplingParams sampling;
  // sampling.logit_bias with the stop tokens forbidden: while there are less than min_tokens.
  std::vector<std::pair<TokenId, float>> early_bias;

  int num_tokens() const { return static_cast<int>(tokens.size()); }
  int num_output() const { return num_tokens() - prompt_tokens; }
  // For the token that comes next. Refers to this row: valid until it changes.
  SampleParams sample_params() const;
};

class RequestTable {
 public:
  explicit RequestTable(int vocab_size) : vocab_size_(vocab_size) {}

  // Takes in what a plan says of requests: reset, release, table edits, start, the batch's new
  // blocks.
  void apply(const StepPlan& plan);
  RunningRequest& row(RequestSlot slot);
  const RunningRequest& row(RequestSlot slot) const;

 private:
  void start(const StartRequest& request);

  int vocab_size_;
  std::vector<RunningRequest> rows_;
};

}  // namespace vamp
