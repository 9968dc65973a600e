// For tests: an executor without a model that checks what it reads.
#pragma once

#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/random.h"
#include "core/executor.h"
#include "exec/request_table.h"

namespace vamp {

// What a token's KV stands for: all tokens up to it.
inline uint64_t mix(uint64_t history, TokenId token) {
  return Random(history * 31 + static_cast<uint64_t>(token) + 1).next();
}

inline TokenId next_token(uint64_t history) {
  return static_cast<TokenId>(history % 97);
}

// An executor whose KV is a hash of the history, which it checks wherever it is read. It loses the
// steps it is told to.
class HashExecutor final : public Executor {
 public:
  HashExecutor(const MemoryLayout& layout, int host_blocks, std::set<StepId> lost)
      : layout_(layout),
        device_(layout.max_blocks(), Block(layout.block_tokens)),
        host_(host_blocks, Block(layout.block_tokens)),
        lost_(std::move(lost)) {}

  void submit(StepPlan plan) override {
    StepResult result;
    result.step = plan.step;
    if (plan.reset) skipping_ = false;
    skipping_ = skipping_ || lost_.count(plan.step) > 0;
    result.executed = !skipping_;
    if (!skipping_) run(plan, result);
    results_.push_back(std::move(result));
  }
  StepResult wait() override {
    StepResult result = std::move(results_.front());
    results_.pop_front();
    return result;
  }
  int in_flight() const override { return static_cast<int>(results_.size()); }

 private:
  using Block = std::vector<uint64_t>;

  void run(const StepPlan& plan, StepResult& result) {
    for (const BlockMove& move : plan.move_blocks) device_.at(move.to) = device_.at(move.from);
    result.demoted = std::exchange(next_demoted_, plan.demote);  // told one step later
    result.promoted = std::exchange(next_promoted_, plan.promote);
    VAMP_CHECK(!plan.await_copies || result.demoted.size() + result.promoted.size() > 0,
               "nothing to wait for");
    for (const BlockCopy& copy : plan.demote) host_.at(copy.host) = device_.at(copy.device);
    for (const BlockCopy& copy : plan.promote) device_.at(copy.device) = host_.at(copy.host);
    table_.apply(plan);
    for (const BatchEntry& entry : plan.batch) compute(entry, result);
  }

  void compute(const BatchEntry& entry, StepResult& result) {
    RunningRequest& row = table_.row(entry.slot);
    uint64_t history = 0;
    for (int p = 0; p < entry.first + entry.count; ++p) {
      history = mix(history, row.tokens.at(p));
      uint64_t& kv =
          device_.at(row.blocks.at(p / layout_.block_tokens)).at(p % layout_.block_tokens);
      if (p >= entry.first) kv = history;
      VAMP_CHECK(kv == history, "request {} reads other KV at token {}", row.id, p);
    }
    if (!entry.sample) return;
    row.tokens.push_back(next_token(history));
    SampledToken token;
    token.slot = entry.slot;
    token.token = row.tokens.back();
    result.tokens.push_back(token);
  }

  const MemoryLayout& layout_;
  std::vector<Block> device_, host_;
  std::set<StepId> lost_;
  bool skipping_ = false;
  RequestTable table_{1000};
  std::vector<BlockCopy> next_demoted_, next_promoted_;
  std::deque<StepResult> results_;
};

}  // namespace vamp
