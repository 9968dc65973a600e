// The executor's side of the running requests: tokens, block table and sampling parameters, one row
// a slot, kept from the plans' deltas.
//
// Used by the executor's worker thread only. It trusts the scheduler: a plan that does not fit the
// table is a broken invariant. It does not trust tokens nor grammars: a token outside the
// vocabulary, or a grammar that throws, marks its row invalid, which fails that request and no
// other.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "core/step_plan.h"
#include "kernels/ops.h"

namespace vamp {

struct RunningRequest {
  bool active = false;
  bool valid = true;  // false: what it samples is invalid
  RequestId id = 0;
  std::vector<TokenId> tokens;  // prompt and output, the newest sampled token included
  int prompt_tokens = 0;
  std::vector<BlockId> blocks;  // block i holds tokens [i * block_tokens, ...)
  SamplingParams sampling;
  // sampling.logit_bias with the stop tokens forbidden: while there are less than min_tokens.
  std::vector<std::pair<TokenId, float>> early_bias;
  std::unique_ptr<TokenMatcher> matcher;  // of sampling.grammar, after the output so far
  std::vector<uint32_t> allowed;          // what it allows next; empty without a grammar

  int num_tokens() const { return static_cast<int>(tokens.size()); }
  int num_output() const { return num_tokens() - prompt_tokens; }
  // For the token that comes next. Refers to this row: valid until it changes.
  SampleParams sample_params();
  // For a token that is known: no other may come. `mask` has a bit for each token of the
  // vocabulary; it must live as long as what is returned.
  SampleParams score_params(TokenId known, std::vector<uint32_t>& mask) const;
  void append(TokenId token);
  void start_grammar(int vocab_size);

 private:
  void follow(TokenId token);
  template <typename Use>
  void use_grammar(Use use);
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
