#include "exec/step_batch.h"

#include "base/error.h"

namespace vamp {

void StepBatch::build(const StepPlan& plan, const RequestTable& table, int block_tokens) {
  tokens_.clear();
  positions_.clear();
  query_start_.assign(1, 0);
  block_start_.assign(1, 0);
  block_ids_.clear();
  sample_rows_.clear();
  sample_slots_.clear();
  known_tokens_.clear();
  sample_positions_.clear();
  sample_query_start_.assign(1, 0);
  sample_block_start_.assign(1, 0);
  sample_block_ids_.clear();
  for (const BatchEntry& entry : plan.batch) {
    if (entry.count == 0) continue;
    const RunningRequest& row = table.row(entry.slot);
    const int end = entry.first + entry.count;
    VAMP_CHECK(entry.first >= 0 && entry.count > 0 && end <= row.num_tokens(),
               "slot {}: tokens {} + {} of {}", entry.slot, entry.first, entry.count,
               row.num_tokens());
    const int blocks = (end + block_tokens - 1) / block_tokens;
    VAMP_CHECK(static_cast<size_t>(blocks) <= row.blocks.size(), "slot {}: {} tokens in {} blocks",
               entry.slot, end, row.blocks.size());
    VAMP_CHECK(!entry.sample || end == row.num_tokens(), "slot {} samples after token {} of {}",
               entry.slot, end, row.num_tokens());
    VAMP_CHECK(entry.scored >= 0 && entry.scored <= entry.count - entry.sample &&
                   entry.first + entry.scored < row.num_tokens(),
               "slot {} scores {} of {} tokens", entry.slot, entry.scored, entry.count);
    tokens_.insert(tokens_.end(), row.tokens.begin() + entry.first, row.tokens.begin() + end);
    for (int p = entry.first; p < end; ++p) positions_.push_back(p);
    block_ids_.insert(block_ids_.end(), row.blocks.begin(), row.blocks.begin() + blocks);
    query_start_.push_back(num_tokens());
    block_start_.push_back(static_cast<int32_t>(block_ids_.size()));
    const int begin = num_tokens() - entry.count;
    for (int i = 0; i < entry.scored; ++i) {
      const int position = entry.first + i;
      add_sample(row, entry.slot, position, begin + i, block_tokens,
                 row.tokens[static_cast<size_t>(position) + 1]);
    }
    if (entry.sample)
      add_sample(row, entry.slot, end - 1, num_tokens() - 1, block_tokens, kSampled);
  }
}

// The token at `position` of the request, which is row `at` of the batch.
void StepBatch::add_sample(const RunningRequest& row, RequestSlot slot, int position, int at,
                           int block_tokens, TokenId known) {
  sample_rows_.push_back(at);
  sample_slots_.push_back(slot);
  known_tokens_.push_back(known);
  sample_positions_.push_back(position);
  sample_query_start_.push_back(static_cast<int32_t>(sample_rows_.size()));
  sample_block_ids_.insert(sample_block_ids_.end(), row.blocks.begin(),
                           row.blocks.begin() + position / block_tokens + 1);
  sample_block_start_.push_back(static_cast<int32_t>(sample_block_ids_.size()));
}

SequenceBatch StepBatch::sequences() const {
  SequenceBatch batch;
  batch.num_tokens = num_tokens();
  batch.num_sequences = num_sequences();
  batch.positions = positions_.data();
  batch.query_start = query_start_.data();
  batch.block_start = block_start_.data();
  batch.block_ids = block_ids_.data();
  return batch;
}

SequenceBatch StepBatch::sampling_sequences() const {
  SequenceBatch batch;
  batch.num_tokens = batch.num_sequences = static_cast<int>(sample_rows_.size());
  batch.positions = sample_positions_.data();
  batch.query_start = sample_query_start_.data();
  batch.block_start = sample_block_start_.data();
  batch.block_ids = sample_block_ids_.data();
  return batch;
}

}  // namespace vamp
