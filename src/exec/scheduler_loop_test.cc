// The real scheduler over the real executor: conversations under too little memory, any policy.

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/test_seed.h"
#include "core/make_policy.h"
#include "core/random_policy.h"
#include "core/scheduler.h"
#include "exec/executor_test_support.h"
#include "memory/host_virtual_memory.h"
#include "memory/virtual_memory_decorators.h"

namespace vamp {
namespace {

using test::golden_config;
using test::Tokens;

// The engine's loop in small: `sessions` conversations of `turns` turns each, a turn's prompt being
// all that was said before and something new.
class Loop {
 public:
  Loop(const ExecutorConfig& config, const std::string& policy, uint64_t seed,
       VirtualMemory* memory)
      : executor_(config, clock_, {}, memory), random_(seed) {
    SchedulerConfig scheduling;
    scheduling.max_num_seqs = 4;
    scheduling.max_num_batched_tokens = static_cast<int>(random_.between(8, 64));
    scheduling.host_blocks = executor_.host_blocks();
    scheduling.boundary_backoff = 0;
    scheduler_ = std::make_unique<Scheduler>(scheduling, executor_.layout(),
                                             policy == "random"
                                                 ? std::make_unique<RandomPolicy>(seed)
                                                 : make_policy(policy, {}, executor_.layout()));
  }

  void run(int sessions, int turns, int max_tokens) {
    for (int s = 0; s < sessions; ++s) ask(s, {}, max_tokens);
    for (int steps = 0; left(turns); ++steps) {
      VAMP_CHECK(steps < 20000, "no progress");
      now_ += 1000;
      StepPlan plan = scheduler_->schedule(now_);
      const bool nothing = plan.empty();
      if (!nothing) executor_.submit(std::move(plan));
      if (executor_.in_flight() == 2 || (nothing && executor_.in_flight() > 0)) {
        const StepResult result = executor_.wait();
        staged_bytes_ += result.staging.staged_bytes;
        scheduler_->update(result, now_);
        scheduler_->check_invariants();
      }
      take_events(turns, max_tokens);
    }
    while (executor_.in_flight() > 0) scheduler_->update(executor_.wait(), now_);
  }

  const Tokens& prompts() const { return prompts_; }
  const Tokens& outputs() const { return outputs_; }
  SchedulerStats stats() const { return scheduler_->stats(); }
  size_t staged_bytes() const { return staged_bytes_; }

 private:
  bool left(int turns) const { return finished_ < turns * static_cast<int>(sessions_.size()); }

  void ask(RequestId session, std::vector<TokenId> history, int max_tokens) {
    const RequestId id = next_id_++;
    for (int64_t i = random_.between(5, 15); i > 0; --i) {
      history.push_back(static_cast<TokenId>(random_.below(512)));
    }
    prompts_[id] = history;
    sessions_[session] = id;
    RequestInput input;
    input.id = id;
    input.prompt = std::move(history);
    input.sampling = test::make_sampling(id, max_tokens);
    input.sampling.ignore_eos = true;
    input.reuse.session = session + 1;
    input.arrival = now_;
    const auto refused = scheduler_->add(std::move(input), now_);
    VAMP_CHECK(!refused, "{}", refused.value_or(""));
  }

  void take_events(int turns, int max_tokens) {
    for (const RequestEvent& event : scheduler_->take_events()) {
      if (event.kind == RequestEvent::Kind::kToken) {
        outputs_[event.id].push_back(event.token);
        continue;
      }
      VAMP_CHECK(event.reason == FinishReason::kLength, "{}", event.error);
      ++finished_;
      for (auto& [session, id] : sessions_) {
        if (id != event.id || ++turns_[session] == turns) continue;
        std::vector<TokenId> history = prompts_[id];
        history.insert(history.end(), outputs_[id].begin(), outputs_[id].end());
        ask(session, std::move(history), max_tokens);
        break;
      }
    }
  }

  RealClock clock_;
  CpuExecutor executor_;
  Random random_;
  std::unique_ptr<Scheduler> scheduler_;
  Micros now_ = 0;
  RequestId next_id_ = 0;
  std::map<RequestId, RequestId> sessions_;  // to the request of its present turn
  std::map<RequestId, int> turns_;
  Tokens prompts_, outputs_;
  int finished_ = 0;
  size_t staged_bytes_ = 0;
};

// 24 blocks of 4 tokens in the base pool, 9 more to win: conversations of up to 18.
ExecutorConfig tight_config() {
  ExecutorConfig config = golden_config("mixtral", 75, 24);
  config.kv_offloading_size = 30 * 8 * kKiB;
  return config;
}

class SchedulerLoop : public testing::TestWithParam<const char*> {};

TEST_P(SchedulerLoop, ConversationsGetTheTokensOfThePlainRun) {
  const bool random = std::string(GetParam()) == "random";
  uint64_t moves = 0, host_hits = 0, hits = 0, staged = 0;
  const uint64_t first = seed_of_soak().value_or(0);
  for (uint64_t seed = first; seed < first + (random ? 6 : 2); ++seed) {
    const ExecutorConfig config = tight_config();
    Loop loop(config, GetParam(), seed, nullptr);
    loop.run(/*sessions=*/4, /*turns=*/3, /*max_tokens=*/8);
    ASSERT_EQ(loop.prompts().size(), 12u);
    ASSERT_EQ(loop.outputs(), test::run_plainly(golden_config("mixtral", 0), loop.prompts(), 8));
    moves += loop.stats().boundary_moves;
    host_hits += loop.stats().host_hit_tokens;
    hits += loop.stats().hit_tokens;
    EXPECT_TRUE(loop.stats().boundary_moves > 0 || loop.staged_bytes() == 0);
    staged += loop.staged_bytes();
  }
  if (seed_of_soak()) return;
  EXPECT_GT(hits, 0u);
  if (random) {
    EXPECT_GT(moves, 10u);
    EXPECT_GT(host_hits, 0u);
    EXPECT_GT(staged, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, SchedulerLoop,
                         testing::Values("static", "paper", "priced", "random"),
                         [](const auto& test) { return std::string(test.param); });

#ifdef VAMP_SANITIZED
constexpr int kStride = 6;
#else
constexpr int kStride = 4;
#endif

TEST(SchedulerLoopFailure, TheSchedulerComesBackFromAFailedMoveWhereverItFails) {
  ExecutorConfig config = tight_config();
  config.kv_offloading_size = 0;  // when a copy ends is chance; without any, every run is the same
  std::map<std::vector<TokenId>, std::vector<TokenId>> plain;  // by prompt
  int failures = 0;
  for (int k = 1;; k += kStride) {
    HostVirtualMemory memory;
    FailingVirtualMemory failing(memory);
    ShadowVirtualMemory shadow(failing);
    Loop loop(config, "random", 1, &shadow);
    failing.arm(k);
    loop.run(4, 3, 6);
    Tokens unknown;
    for (const auto& [id, prompt] : loop.prompts()) {
      if (plain.count(prompt) == 0) unknown[id] = prompt;
    }
    for (const auto& [id, output] : test::run_plainly(golden_config("mixtral", 0), unknown, 6)) {
      plain[unknown[id]] = output;
    }
    for (const auto& [id, prompt] : loop.prompts()) {
      ASSERT_EQ(loop.outputs().at(id), plain.at(prompt)) << "failure at call " << k;
    }
    ASSERT_LE(loop.stats().failed_steps, 2u);  // the one that failed, the one behind it
    if (loop.stats().failed_steps == 0) break;
    ++failures;
  }
  EXPECT_GT(failures, 3);
}

}  // namespace
}  // namespace vamp
