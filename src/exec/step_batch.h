// A step's work, flattened: the entries' tokens end to end, with what attention and sampling need.
#pragma once

#include <vector>

#include "core/step_plan.h"
#include "exec/request_table.h"
#include "kernels/ops.h"

namespace vamp {

// Built anew for each step; keeps its memory. The order is the plan's.
class StepBatch {
 public:
  // The table must already have taken the plan in. Entries of no tokens are left out.
  void build(const StepPlan& plan, const RequestTable& table, int block_tokens);

  int num_tokens() const { return static_cast<int>(tokens_.size()); }
  int num_sequences() const { return static_cast<int>(query_start_.size()) - 1; }
  const TokenId* tokens() const { return tokens_.data(); }
  const int32_t* positions() const { return positions_.data(); }
  SequenceBatch sequences() const;
  // Only the tokens that sample or are scored, each a sequence: row i is sample_rows()[i].
  SequenceBatch sampling_sequences() const;
  // Rows whose logits are wanted, ascending, the slot of each, and which token is known to follow:
  // kSampled where one is to be sampled.
  static constexpr TokenId kSampled = -1;
  const std::vector<int32_t>& sample_rows() const { return sample_rows_; }
  const std::vector<RequestSlot>& sample_slots() const { return sample_slots_; }
  const std::vector<TokenId>& known_tokens() const { return known_tokens_; }

 private:
  void add_sample(const RunningRequest& row, RequestSlot slot, int position, int at,
                  int block_tokens, TokenId known);

  std::vector<TokenId> tokens_;
  std::vector<int32_t> positions_;
  std::vector<int32_t> query_start_ = {0};
  std::vector<int32_t> block_start_ = {0};
  std::vector<BlockId> block_ids_;
  std::vector<int32_t> sample_rows_;
  std::vector<RequestSlot> sample_slots_;
  std::vector<TokenId> known_tokens_;
  // The same four as of the sequences.
  std::vector<int32_t> sample_positions_;
  std::vector<int32_t> sample_query_start_ = {0};
  std::vector<int32_t> sample_block_start_ = {0};
  std::vector<BlockId> sample_block_ids_;
};

}  // namespace vamp
