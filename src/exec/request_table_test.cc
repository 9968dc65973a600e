#include "exec/request_table.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"

namespace vamp {
namespace {

StartRequest start(RequestSlot slot, std::vector<TokenId> tokens, int prompt = -1) {
  StartRequest s;
  s.slot = slot;
  s.id = 100 + slot;
  s.prompt_tokens = prompt < 0 ? static_cast<int>(tokens.size()) : prompt;
  s.tokens = std::move(tokens);
  s.blocks = {1, 2};
  return s;
}

TEST(RequestTable, KeepsRowsFromDeltas) {
  RequestTable table(50);
  StepPlan plan;
  plan.start = {start(3, {1, 2, 3}), start(0, {4})};
  plan.batch = {{3, 0, 3, true, {7}}};
  table.apply(plan);
  EXPECT_EQ(table.row(3).blocks, (std::vector<BlockId>{1, 2, 7}));
  table.row(3).tokens.push_back(9);
  EXPECT_EQ(table.row(3).num_output(), 1);

  StepPlan edit;
  edit.edit_tables = {{3, 1, 40}};
  table.apply(edit);
  EXPECT_EQ(table.row(3).blocks, (std::vector<BlockId>{1, 40, 7}));

  StepPlan next;  // a slot may be given away in the plan that releases it
  next.release = {3};
  next.start = {start(3, {5, 6})};
  table.apply(next);
  EXPECT_EQ(table.row(3).tokens, (std::vector<TokenId>{5, 6}));
  EXPECT_EQ(table.row(0).id, 100u);

  StepPlan reset;
  reset.reset = true;
  table.apply(reset);
  EXPECT_THROW(table.row(0), InvariantError);
}

// Allows the token that follows the last one, and stop tokens always.
class Counting : public TokenGrammar {
 public:
  std::unique_ptr<TokenMatcher> start(std::span<const TokenId> stops) const override {
    struct Matcher : TokenMatcher {
      void fill(std::span<uint32_t> allowed) override {
        for (uint32_t& word : allowed) word = 0;
        for (const TokenId token : stops) allowed[token / 32] |= 1u << (token % 32);
        allowed[next / 32] |= 1u << (next % 32);
      }
      bool accept(TokenId token) override {
        if (token != next) return false;
        ++next;
        return true;
      }
      TokenId next = 10;
      std::vector<TokenId> stops;
    };
    auto matcher = std::make_unique<Matcher>();
    matcher->stops.assign(stops.begin(), stops.end());
    return matcher;
  }
};

TEST(RequestTable, AGrammarIsFollowedFromTheOutputOn) {
  RequestTable table(50);
  StepPlan plan;
  plan.start = {start(0, {4, 5, 10, 11}, 2)};  // two tokens of output, as after a preemption
  plan.start[0].sampling.grammar = std::make_shared<Counting>();
  plan.start[0].sampling.stop_token_ids = {3};
  table.apply(plan);
  RunningRequest& row = table.row(0);
  EXPECT_EQ(row.sample_params().allowed[0], 1u << 12 | 1u << 3);
  row.append(12);
  EXPECT_EQ(row.sample_params().allowed[0], 1u << 13 | 1u << 3);
  EXPECT_TRUE(row.valid);
  row.append(
      9);  // not what the mask allowed: something is broken, and this request shall not go on
  EXPECT_FALSE(row.valid);
}

TEST(RequestTable, PlansThatDoNotFitAreBrokenInvariants) {
  RequestTable table(50);
  StepPlan plan;
  plan.start = {start(0, {1})};
  table.apply(plan);
  EXPECT_THROW(table.apply(plan), InvariantError);
  StepPlan release, edit;
  edit.edit_tables = {{0, 2, 9}};
  EXPECT_THROW(table.apply(edit), InvariantError);
  release.release = {1};
  EXPECT_THROW(table.apply(release), InvariantError);
}

TEST(RequestTable, TokensOutsideTheVocabularyMarkTheirRow) {
  RequestTable table(50);
  StepPlan plan;
  plan.start = {start(0, {1, 50, 2}), start(1, {49}), start(2, {-1})};
  table.apply(plan);
  EXPECT_FALSE(table.row(0).valid);
  EXPECT_TRUE(table.row(1).valid);
  EXPECT_FALSE(table.row(2).valid);
  for (TokenId t : table.row(0).tokens) EXPECT_LT(t, 50);
}

TEST(RequestTable, StopTokensAreForbiddenUntilTheLeastLength) {
  RequestTable table(50);
  StartRequest request = start(0, {1, 1, 2, 3}, /*prompt=*/3);  // one output token: was preempted
  request.sampling.stop_token_ids = {7};
  request.sampling.min_tokens = 2;
  request.sampling.logit_bias = {{5, 1.0f}};
  StepPlan plan;
  plan.start = {request};
  table.apply(plan);
  SampleParams params = table.row(0).sample_params();
  EXPECT_EQ(params.logit_bias.size(), 2u);
  EXPECT_EQ(params.logit_bias[1], std::make_pair(7, -std::numeric_limits<float>::infinity()));
  EXPECT_EQ(params.prompt.size(), 3u);
  EXPECT_EQ(params.output.size(), 1u);
  EXPECT_EQ(params.counter, 1u);
  table.row(0).tokens.push_back(9);
  params = table.row(0).sample_params();
  EXPECT_EQ(params.logit_bias.size(), 1u);
  EXPECT_EQ(params.counter, 2u);
}

}  // namespace
}  // namespace vamp
