#include "exec/random_schedule.h"

#include <gtest/gtest.h>

#include "exec/hash_executor.h"

namespace vamp {
namespace {

// Eight MoE layers of eight groups; four groups of each may go.
MemoryLayout small_layout() {
  MemoryLayoutOptions options;
  ModelConfig model;
  model.hidden_size = 64;
  model.moe_intermediate_size = 32;
  model.num_experts = 8;
  model.experts_per_token = 2;
  model.num_heads = model.num_kv_heads = 2;
  model.head_dim = 32;
  model.vocab_size = 512;
  model.layers.resize(8);
  options.page_bytes = 4096;
  options.device_bytes = 3 * kMiB;
  options.block_tokens = 16;
  options.max_offload_percent = 50;
  return make_memory_layout(model, options);
}

TEST(RandomSchedule, KeepsItsPromises) {
  const MemoryLayout layout = small_layout();
  ASSERT_GT(layout.max_groups_out(), 10);
  RandomSchedule::Counts sum;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    ScheduleOptions options;
    options.lag = seed % 2;
    options.host_blocks = 12;
    std::set<StepId> lost;
    if (seed % 3 == 0) lost = {5, 17, 18, 40};
    HashExecutor executor(layout, options.host_blocks, lost);
    RandomSchedule schedule(executor, layout, options, seed);
    Random random(seed);
    std::vector<TokenId> common(60);
    for (TokenId& t : common) t = static_cast<TokenId>(random.below(1000));
    std::map<RequestId, std::vector<TokenId>> prompts;
    for (RequestId id = 0; id < 8; ++id) {
      std::vector<TokenId> prompt(common.begin(), common.begin() + random.between(1, 60));
      for (int i = 0; i < 20; ++i) prompt.push_back(static_cast<TokenId>(random.below(1000)));
      SamplingParams sampling;
      sampling.max_tokens = 12;
      prompts[id] = prompt;
      schedule.add(id, prompt, sampling);
    }
    for (const auto& [id, output] : schedule.run()) {
      uint64_t history = 0;
      for (TokenId t : prompts[id]) history = mix(history, t);
      ASSERT_EQ(output.size(), 12u);
      for (TokenId t : output) {
        ASSERT_EQ(t, next_token(history));
        history = mix(history, t);
      }
    }
    const RandomSchedule::Counts& c = schedule.counts();
    sum.lost += c.lost;
    sum.boundary_moves += c.boundary_moves;
    sum.block_moves += c.block_moves;
    sum.preemptions += c.preemptions;
    sum.hits += c.hits;
    sum.demoted += c.demoted;
    sum.promoted += c.promoted;
  }
  // All that it is for did happen.
  EXPECT_GT(sum.lost, 20);
  EXPECT_GT(sum.boundary_moves, 100);
  EXPECT_GT(sum.block_moves, 100);
  EXPECT_GT(sum.preemptions, 20);
  EXPECT_GT(sum.hits, 50);
  EXPECT_GT(sum.demoted, 50);
  EXPECT_GT(sum.promoted, 50);
}

}  // namespace
}  // namespace vamp
