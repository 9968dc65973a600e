#include "exec/step_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace vamp {
namespace {

using ::testing::ElementsAre;

StepPlan two_requests() {
  StepPlan plan;
  StartRequest a, b;
  a.slot = 0;
  a.tokens = {10, 11, 12, 13, 14, 15};
  a.prompt_tokens = 6;
  a.blocks = {5};
  b.slot = 4;
  b.tokens = {20, 21, 22};
  b.prompt_tokens = 3;
  b.blocks = {7, 8};
  plan.start = {a, b};
  plan.batch = {{0, 2, 3, false, {6}}, {4, 2, 1, true, {}}};
  return plan;
}

TEST(StepBatch, LaysEntriesEndToEnd) {
  RequestTable table(100);
  const StepPlan plan = two_requests();
  table.apply(plan);
  StepBatch batch;
  batch.build(plan, table, /*block_tokens=*/4);
  const SequenceBatch s = batch.sequences();
  ASSERT_EQ(s.num_tokens, 4);
  ASSERT_EQ(s.num_sequences, 2);
  EXPECT_THAT(std::vector<TokenId>(batch.tokens(), batch.tokens() + 4),
              ElementsAre(12, 13, 14, 22));
  EXPECT_THAT(std::vector<int>(s.positions, s.positions + 4), ElementsAre(2, 3, 4, 2));
  EXPECT_THAT(std::vector<int>(s.query_start, s.query_start + 3), ElementsAre(0, 3, 4));
  EXPECT_THAT(std::vector<int>(s.block_start, s.block_start + 3), ElementsAre(0, 2, 3));
  EXPECT_THAT(std::vector<int>(s.block_ids, s.block_ids + 3), ElementsAre(5, 6, 7));
  EXPECT_THAT(batch.sample_rows(), ElementsAre(3));
  EXPECT_THAT(batch.sample_slots(), ElementsAre(4));
  const SequenceBatch last = batch.sampling_sequences();
  ASSERT_EQ(last.num_tokens, 1);
  ASSERT_EQ(last.num_sequences, 1);
  EXPECT_EQ(last.positions[0], 2);
  EXPECT_THAT(std::vector<int>(last.query_start, last.query_start + 2), ElementsAre(0, 1));
  EXPECT_THAT(std::vector<int>(last.block_start, last.block_start + 2), ElementsAre(0, 1));
  EXPECT_EQ(last.block_ids[0], 7);
}

TEST(StepBatch, ScoredTokensAreRowsWithATokenThatIsKnown) {
  RequestTable table(100);
  StepPlan plan = two_requests();
  plan.batch[0].scored = 3;
  table.apply(plan);
  StepBatch batch;
  batch.build(plan, table, /*block_tokens=*/4);
  EXPECT_THAT(batch.sample_rows(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(batch.sample_slots(), ElementsAre(0, 0, 0, 4));
  EXPECT_THAT(batch.known_tokens(), ElementsAre(13, 14, 15, StepBatch::kSampled));
  const SequenceBatch s = batch.sampling_sequences();
  ASSERT_EQ(s.num_sequences, 4);
  EXPECT_THAT(std::vector<int>(s.positions, s.positions + 4), ElementsAre(2, 3, 4, 2));
  EXPECT_THAT(std::vector<int>(s.block_start, s.block_start + 5), ElementsAre(0, 1, 2, 4, 5));
  EXPECT_THAT(std::vector<int>(s.block_ids, s.block_ids + 5), ElementsAre(5, 5, 5, 6, 7));
  plan.batch[0].count = 4;
  plan.batch[0].scored = 4;  // nothing is known behind the last token
  EXPECT_THROW(batch.build(plan, table, 4), InvariantError);
}

TEST(StepBatch, WorkThatDoesNotFitTheTableIsABrokenInvariant) {
  RequestTable table(100);
  StepPlan plan = two_requests();
  table.apply(plan);
  StepBatch batch;
  StepPlan beyond = plan, early = plan, blocks = plan;
  beyond.batch = {{4, 2, 2, false, {}}};
  EXPECT_THROW(batch.build(beyond, table, 4), InvariantError);
  early.batch = {{4, 0, 2, true, {}}};
  EXPECT_THROW(batch.build(early, table, 4), InvariantError);
  blocks.batch = {{0, 0, 6, true, {}}};
  EXPECT_THROW(batch.build(blocks, table, 2), InvariantError);
}

}  // namespace
}  // namespace vamp
