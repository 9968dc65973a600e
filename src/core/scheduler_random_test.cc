// Thousands of short lives of a scheduler: random requests, cancels, deadlines, failures, pools,
// host tiers, boundary moves and decisions. Whatever happens, every request's tokens are those that
// its own history demands, every invariant holds after every step, and the events of the cache add
// up to what it holds.
#include <gtest/gtest.h>

#include <cstdlib>

#include "core/random_policy.h"
#include "core/scheduler_test_util.h"

namespace vamp {
namespace {

struct Life {
  SchedulerConfig config;
  TestLayoutOptions layout;
  CheckingExecutorOptions executor;
  int requests = 0;
  bool random_policy = false;
  bool boundary_moves = true;
  double cancel_rate = 0, deadline_rate = 0;
};

// What happened in lives: a test that never meets a case proves nothing about it.
struct Tally {
  int moves = 0, edits = 0, demotes = 0, promotes = 0, raised = 0, lowered = 0, awaited = 0,
      resets = 0;
  int stored = 0, removed = 0, cleared = 0, scored = 0;
  uint64_t preemptions = 0, failed = 0, host_hits = 0, hits = 0;
  void count(const StepPlan& plan) {
    moves += !plan.move_blocks.empty();
    edits += !plan.edit_tables.empty();
    demotes += !plan.demote.empty();
    promotes += !plan.promote.empty();
    raised += plan.boundary && !plan.boundary->map_slots.empty();
    lowered += plan.boundary && !plan.boundary->unmap_slots.empty();
    awaited += plan.await_copies;
    resets += plan.reset;
  }
};

Life make_life(uint64_t seed) {
  Random random(seed);
  Life life;
  life.layout.block_tokens = static_cast<int>(random.between(1, 6));
  life.layout.base_blocks = static_cast<int>(random.between(6, 40));
  life.layout.block_bytes = 1024;
  life.layout.group_bytes = static_cast<size_t>(random.between(1, 9)) * 768;
  life.layout.moe_layers = static_cast<int>(random.between(2, 9));
  life.layout.max_groups_out_per_layer =
      random.chance(0.7) ? static_cast<int>(random.between(1, 6)) : 0;
  life.layout.increment_groups = static_cast<int>(random.between(1, 4));
  life.config.max_num_seqs = static_cast<int>(random.between(1, 8));
  life.config.max_num_batched_tokens = static_cast<int>(random.between(2, 40));
  life.config.enable_prefix_caching = random.chance(0.9);
  life.config.scheduling =
      random.chance(0.3) ? SchedulingPolicy::kPriority : SchedulingPolicy::kFcfs;
  life.config.admission =
      random.chance(0.5) ? AdmissionRule::kFirstChunk : AdmissionRule::kWholePrompt;
  life.config.host_blocks = random.chance(0.7) ? static_cast<int>(random.between(1, 40)) : 0;
  life.config.boundary_backoff = 20e3;
  life.config.kv_events = true;
  life.config.max_boundary_failures = static_cast<int>(random.between(1, 3));
  life.config.boundary_cooling = 200e3;
  life.boundary_moves = random.chance(0.9);
  life.config.max_ghosts = static_cast<int>(random.between(0, 50));
  life.config.max_candidates = static_cast<int>(random.between(1, 8));
  life.config.min_segment_blocks = static_cast<int>(random.between(1, 8));
  life.executor.vocabulary = random.chance(0.3) ? 2 : 50;  // few: equal outputs meet
  life.executor.copy_rate = random.chance(0.3) ? 1.0 : 0.3;
  life.executor.failure_rate = random.chance(0.5) ? 0.03 : 0.0;
  life.executor.invalid_rate = random.chance(0.1) ? 0.02 : 0.0;
  life.executor.seed = seed + 1;
  life.requests = static_cast<int>(random.between(3, 25));
  life.random_policy = random.chance(0.8);
  life.cancel_rate = random.chance(0.5) ? 0.03 : 0.0;
  life.deadline_rate = random.chance(0.3) ? 0.2 : 0.0;
  return life;
}

RequestInput random_request(RequestId id, const Life& life,
                            std::vector<std::vector<TokenId>>& conversations, Random& random,
                            Micros now) {
  RequestInput input;
  input.id = id;
  // Most go on with something that was there before, whole or in part.
  if (!conversations.empty() && random.chance(0.7)) {
    const std::vector<TokenId>& earlier = conversations[random.below(conversations.size())];
    input.prompt.assign(earlier.begin(),
                        earlier.begin() + random.between(0, static_cast<int64_t>(earlier.size())));
    input.reuse.session = random.below(4);
  }
  const int most = (life.layout.base_blocks * life.layout.block_tokens) / 2;
  const auto extra = random_tokens(
      random, static_cast<int>(random.between(1, std::max(1, most / 2))), life.executor.vocabulary);
  input.prompt.insert(input.prompt.end(), extra.begin(), extra.end());
  input.reuse.release = random.chance(0.1);
  input.priority = static_cast<int>(random.below(3));
  input.cache_salt = random.below(5) == 0 ? 1 : 0;
  input.sampling.max_tokens = static_cast<int>(random.between(1, std::max(2, most / 2)));
  input.sampling.seed = random.below(2);
  input.sampling.ignore_eos = true;
  input.sampling.prompt_logprobs = id % 7 == 3 ? 0 : -1;
  input.arrival = now;
  if (random.chance(life.deadline_rate))
    input.deadline = now + static_cast<double>(random.between(1, 40)) * 1000;
  return input;
}

void live(uint64_t seed, Tally& tally) {
  const Life life = make_life(seed);
  Random random(seed + 2);
  std::unique_ptr<ReclaimPolicy> policy;
  if (life.random_policy) policy = std::make_unique<RandomPolicy>(seed + 3);
  SchedulerHarness harness(life.config, life.layout, std::move(policy), life.executor);
  harness.executor().set_boundary_moves(life.boundary_moves);
  std::vector<std::vector<TokenId>> conversations;
  RequestId next = 1;
  std::vector<RequestId> accepted;
  for (int step = 0; step < 5000; ++step) {
    while (next <= static_cast<RequestId>(life.requests) && random.chance(0.3)) {
      RequestInput input = random_request(next, life, conversations, random, harness.now());
      if (!harness.add(input)) accepted.push_back(next);
      conversations.push_back(std::move(input.prompt));
      ++next;
    }
    tally.count(harness.step());
    if (!accepted.empty() && random.chance(life.cancel_rate))
      harness.cancel(accepted[random.below(accepted.size())]);
    if (random.chance(0.005)) harness.scheduler().reset_prefix_cache();
    if (next > static_cast<RequestId>(life.requests) && harness.scheduler().idle()) break;
    if (accepted.empty()) continue;
    const RequestId some = accepted[random.below(accepted.size())];
    if (!harness.finished(some)) continue;
    std::vector<TokenId> whole = harness.prompt(some);
    whole.insert(whole.end(), harness.output(some).begin(), harness.output(some).end());
    conversations.push_back(std::move(whole));
  }
  ASSERT_TRUE(harness.scheduler().idle()) << "work is left undone";
  for (RequestId id : accepted) {
    ASSERT_TRUE(harness.finished(id)) << "request " << id;
    const std::vector<TokenId>& output = harness.output(id);
    EXPECT_EQ(output, expected_output(harness.prompt(id), static_cast<int>(output.size()),
                                      harness.seed(id), life.executor.vocabulary));
    EXPECT_EQ(harness.stats(id).output_tokens, static_cast<int>(output.size()));
    if (id % 7 == 3) harness.expect_right_scores(id, /*all=*/!output.empty());
    tally.scored += static_cast<int>(harness.scored(id));
  }
  tally.stored += harness.replica().count(KvEvent::Kind::kStored);
  tally.removed += harness.replica().count(KvEvent::Kind::kRemoved);
  tally.cleared += harness.replica().count(KvEvent::Kind::kCleared);
  const SchedulerStats stats = harness.scheduler().stats();
  EXPECT_EQ(stats.referenced_blocks, 0);
  EXPECT_EQ(stats.running + stats.waiting, 0);
  tally.preemptions += stats.preemptions;
  tally.failed += stats.failed_steps;
  tally.hits += stats.hit_tokens;
  tally.host_hits += stats.host_hit_tokens;
}

void live_all(uint64_t first, uint64_t count) {
  Tally tally;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    try {
      live(seed, tally);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
    if (testing::Test::HasFailure()) {
      FAIL() << "replay: VAMP_SEED=" << seed
             << " vamp_core_test --gtest_filter=SchedulerRandom.OneSeed";
    }
  }
  EXPECT_GT(tally.moves, 50);
  EXPECT_GT(tally.edits, 50);
  EXPECT_GT(tally.demotes, 50);
  EXPECT_GT(tally.promotes, 50);
  EXPECT_GT(tally.raised, 50);
  EXPECT_GT(tally.lowered, 50);
  EXPECT_GT(tally.awaited, 50);
  EXPECT_GT(tally.resets, 50);
  EXPECT_GT(tally.scored, 50);
  EXPECT_GT(tally.stored, 50);
  EXPECT_GT(tally.removed, 50);
  EXPECT_GT(tally.cleared, 0);
  EXPECT_GT(tally.preemptions, 50u);
  EXPECT_GT(tally.failed, 50u);
  EXPECT_GT(tally.hits, 50u);
  EXPECT_GT(tally.host_hits, 50u);
}

#ifdef VAMP_SANITIZED
constexpr uint64_t kLives = 150;
#else
constexpr uint64_t kLives = 1000;
#endif

TEST(SchedulerRandom, Lives0) {
  live_all(0, kLives);
}
TEST(SchedulerRandom, Lives1) {
  live_all(100'000, kLives);
}
TEST(SchedulerRandom, Lives2) {
  live_all(200'000, kLives);
}
TEST(SchedulerRandom, Lives3) {
  live_all(300'000, kLives);
}

// Replays the seed that a failure names.
TEST(SchedulerRandom, OneSeed) {
  const char* seed = std::getenv("VAMP_SEED");
  Tally tally;
  live(seed == nullptr ? 1 : std::strtoull(seed, nullptr, 10), tally);
}

}  // namespace
}  // namespace vamp
