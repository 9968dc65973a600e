// For tests: a small memory layout, and a scheduler with an executor that checks every plan.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "core/cache_replica.h"
#include "core/checking_executor.h"
#include "core/scheduler.h"
#include "core/static_policy.h"
#include "model/memory_layout.h"

namespace vamp {

struct TestLayoutOptions {
  int base_blocks = 8;
  int block_tokens = 4;
  size_t block_bytes = 1024;
  size_t group_bytes = 3072;  // a multiple of 1.5 blocks straddles
  int moe_layers = 6;
  int groups_per_layer = 8;
  int max_groups_out_per_layer = 0;
  int increment_groups = 2;
};

inline MemoryLayout test_layout(const TestLayoutOptions& options) {
  MemoryLayout layout;
  layout.page_bytes = 512;
  layout.moe_layers = options.moe_layers;
  layout.experts = options.groups_per_layer;
  layout.shards_per_group = 1;
  layout.groups_per_layer = options.groups_per_layer;
  layout.gate_up_shard_bytes = options.group_bytes / 3 * 2;
  layout.down_shard_bytes = options.group_bytes / 3;
  layout.max_groups_out_per_layer = options.max_groups_out_per_layer;
  layout.block_tokens = options.block_tokens;
  layout.block_bytes = options.block_bytes;
  layout.kv_bytes_per_token = options.block_bytes / static_cast<size_t>(options.block_tokens);
  layout.base_pool_bytes = options.block_bytes * static_cast<size_t>(options.base_blocks);
  layout.increment_groups = options.increment_groups;
  layout.set_order(round_robin_order(layout, options.max_groups_out_per_layer, true));
  return layout;
}

inline std::vector<TokenId> random_tokens(Random& random, int count, int vocabulary = 1000) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) {
    tokens.push_back(static_cast<TokenId>(random.below(static_cast<uint64_t>(vocabulary))));
  }
  return tokens;
}

// What a request answers, whatever the scheduler does.
inline std::vector<TokenId> expected_output(const std::vector<TokenId>& prompt, int tokens,
                                            uint64_t seed = 0, int vocabulary = 1000) {
  uint64_t history = 7;
  for (TokenId token : prompt) history = extend_history(history, token);
  std::vector<TokenId> output;
  while (static_cast<int>(output.size()) < tokens) {
    output.push_back(sample_history(history, seed, vocabulary));
    history = extend_history(history, output.back());
  }
  return output;
}

// Answers as it is told; like StaticPolicy where it is not.
class ScriptedPolicy final : public ReclaimPolicy {
 public:
  std::function<ReclaimDecision(const ReclaimInputs&)> on_choose;
  std::function<BackgroundDecision(const BackgroundInputs&)> on_background;
  std::function<bool(SessionId)> on_hold;
  std::optional<int> limit;                      // admission_limit
  std::vector<std::pair<uint64_t, int>> reused;  // decision, tokens
  const char* name() const override { return "scripted"; }
  ReclaimDecision choose(const ReclaimInputs& inputs) override {
    return on_choose ? on_choose(inputs) : evict_or_preempt(inputs);
  }
  BackgroundDecision background(const BackgroundInputs& inputs) override {
    return on_background ? on_background(inputs) : BackgroundDecision();
  }
  bool hold_new_session(SessionId session, int, Micros) override {
    return on_hold && on_hold(session);
  }
  std::optional<int> admission_limit(int, Micros) override { return limit; }
  void on_evicted_reused(uint64_t decision, int tokens, Micros) override {
    reused.emplace_back(decision, tokens);
  }
};

// Demotes whatever is shown to it.
inline ReclaimDecision demote_all(const ReclaimInputs& inputs) {
  ReclaimDecision decision;
  decision.kind = ActionKind::kDemote;
  for (const EvictionCandidate& candidate : inputs.evictable)
    decision.demote.push_back(candidate.handle);
  return decision;
}

// Four requests at once, 64 tokens a step.
inline SchedulerConfig small_scheduler() {
  SchedulerConfig config;
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 64;
  return config;
}

inline std::vector<TokenId> iota(int first, int count) {
  std::vector<TokenId> tokens;
  for (int i = 0; i < count; ++i) tokens.push_back(first + i);
  return tokens;
}

// The loop of an engine, one step a call, with two plans in flight as soon as there is work for
// two.
class SchedulerHarness {
 public:
  SchedulerHarness(const SchedulerConfig& config, const TestLayoutOptions& layout,
                   std::unique_ptr<ReclaimPolicy> policy = nullptr,
                   CheckingExecutorOptions executor = {})
      : layout_(test_layout(layout)),
        follows_events_(config.kv_events),
        replica_(layout.block_tokens, {0, 1}) {
    executor.host_blocks = config.host_blocks;
    executor.logit_rows = config.max_num_seqs;
    executor_ = std::make_unique<CheckingExecutor>(layout_, executor);
    SchedulerListener listener;
    listener.on_finished = [this](const RequestStats& stats) { stats_[stats.id] = stats; };
    listener.on_decision = [this](const DecisionRecord& record) { decisions_.push_back(record); };
    listener.on_decision_result = [this](const DecisionRecord& record) {
      outcomes_[record.id] = record;
    };
    listener.on_kv_events = [this](const std::vector<KvEvent>& events) {
      replica_.apply(events);
      events_.insert(events_.end(), events.begin(), events.end());
    };
    if (policy == nullptr) policy = std::make_unique<StaticPolicy>();
    scheduler_ =
        std::make_unique<Scheduler>(config, layout_, std::move(policy), std::move(listener));
  }

  // Returns the reason of a refusal.
  std::optional<std::string> add(RequestInput input) {
    const RequestId id = input.id;
    std::vector<TokenId> prompt = input.prompt;
    const uint64_t seed = input.sampling.seed;
    auto refused = scheduler_->add(std::move(input), now_);
    if (!refused) {
      prompts_[id] = std::move(prompt);
      seeds_[id] = seed;
    }
    return refused;
  }
  std::optional<std::string> add(RequestId id, std::vector<TokenId> prompt, int max_tokens) {
    RequestInput input;
    input.id = id;
    input.prompt = std::move(prompt);
    input.sampling.max_tokens = max_tokens;
    input.sampling.ignore_eos = true;
    input.arrival = now_;
    return add(std::move(input));
  }
  void cancel(RequestId id) {
    scheduler_->cancel(id, now_);
    collect();
  }

  // One round of schedule and, when the pipeline is full or has nothing new, update.
  StepPlan step() {
    now_ += 1000;
    StepPlan plan = scheduler_->schedule(now_);
    check();
    StepPlan copy = plan;
    const bool nothing = plan.empty();
    if (!nothing) executor_->submit(std::move(plan));
    if (executor_->in_flight() == 2 || (nothing && executor_->in_flight() > 0)) take_result();
    collect();
    return copy;
  }
  void take_result() {
    last_result_ = executor_->wait();
    now_ += 100;
    scheduler_->update(last_result_, now_);
    check();
  }
  void check() {
    scheduler_->check_invariants();
    if (follows_events_) replica_.expect_equal(*scheduler_);
  }
  // Until nothing is left to do; fails after too many steps.
  void run(int max_steps = 10000) {
    for (int i = 0; i < max_steps; ++i) {
      if (scheduler_->idle()) return;
      step();
    }
    FAIL() << "not idle after " << max_steps << " steps: " << scheduler_->stats().running
           << " running, " << scheduler_->stats().waiting << " waiting";
  }

  void run_until_finished(RequestId id, int max_steps = 1000) {
    for (int i = 0; i < max_steps && !finished(id); ++i) step();
    ASSERT_TRUE(finished(id)) << "request " << id << " after " << max_steps << " steps";
  }

  void collect() {
    for (RequestEvent& event : scheduler_->take_events()) {
      if (event.kind == RequestEvent::Kind::kToken) {
        outputs_[event.id].push_back(event.token);
      } else if (event.kind == RequestEvent::Kind::kPromptToken) {
        scores_[event.id].emplace_back(event.token, event.logprob);
      } else {
        ASSERT_FALSE(finished_.contains(event.id)) << "request " << event.id << " finished twice";
        finished_[event.id] = event;
      }
    }
  }
  bool finished(RequestId id) const { return finished_.contains(id); }
  // Its tokens are those that the history demands.
  void expect_right_tokens(RequestId id) {
    const std::vector<TokenId>& output = outputs_[id];
    EXPECT_EQ(output, expected_output(prompts_[id], static_cast<int>(output.size()), seeds_[id]))
        << "request " << id;
  }
  // The prompt's tokens but the first are scored, in order; `all`: to the last.
  void expect_right_scores(RequestId id, bool all = true) {
    const std::vector<TokenId>& prompt = prompts_[id];
    const Scores& scores = scores_[id];
    EXPECT_LT(scores.size(), prompt.size());
    Scores expected;
    uint64_t history = 7;
    for (size_t i = 0; i < (all ? prompt.size() - 1 : scores.size()); ++i) {
      history = extend_history(history, prompt[i]);
      expected.emplace_back(prompt[i + 1], score_history(history, prompt[i + 1]));
    }
    EXPECT_EQ(scores, expected) << "request " << id;
  }
  // Finished with `tokens` right tokens.
  void expect_answer(RequestId id, int tokens) {
    ASSERT_TRUE(finished(id)) << "request " << id;
    EXPECT_EQ(static_cast<int>(outputs_[id].size()), tokens) << "request " << id;
    expect_right_tokens(id);
  }

  Scheduler& scheduler() { return *scheduler_; }
  CheckingExecutor& executor() { return *executor_; }
  const MemoryLayout& layout() const { return layout_; }
  // With config.kv_events.
  CacheReplica& replica() { return replica_; }
  std::vector<KvEvent> take_kv_events() { return std::exchange(events_, {}); }
  Micros& now() { return now_; }
  const RequestStats& stats(RequestId id) { return stats_[id]; }
  const RequestEvent& end(RequestId id) { return finished_[id]; }
  std::vector<TokenId>& output(RequestId id) { return outputs_[id]; }
  std::vector<TokenId>& prompt(RequestId id) { return prompts_[id]; }
  uint64_t seed(RequestId id) { return seeds_[id]; }
  size_t scored(RequestId id) { return scores_[id].size(); }
  const std::vector<DecisionRecord>& decisions() const { return decisions_; }
  const std::map<uint64_t, DecisionRecord>& outcomes() const { return outcomes_; }

 private:
  using Scores = std::vector<std::pair<TokenId, float>>;

  MemoryLayout layout_;
  const bool follows_events_;
  CacheReplica replica_;
  std::vector<KvEvent> events_;
  std::unique_ptr<CheckingExecutor> executor_;
  std::unique_ptr<Scheduler> scheduler_;
  StepResult last_result_;
  Micros now_ = 0;
  std::map<RequestId, std::vector<TokenId>> prompts_, outputs_;
  std::map<RequestId, uint64_t> seeds_;
  std::map<RequestId, Scores> scores_;
  std::map<RequestId, RequestEvent> finished_;
  std::map<RequestId, RequestStats> stats_;
  std::vector<DecisionRecord> decisions_;
  std::map<uint64_t, DecisionRecord> outcomes_;
};

// Tokens computed by running request `id` to its end.
inline int64_t cost_of(SchedulerHarness& harness, RequestId id, std::vector<TokenId> prompt,
                       int tokens = 1) {
  const int64_t before = harness.executor().computed_tokens();
  harness.add(id, std::move(prompt), tokens);
  harness.run();
  harness.expect_answer(id, tokens);
  return harness.executor().computed_tokens() - before;
}

}  // namespace vamp
