#include "sim/sim_executor.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"

namespace vamp {

SimExecutor::SimExecutor(const ModelConfig& model, const MemoryLayout& layout,
                         const SimConfig& config, Clock& clock)
    : layout_(layout),
      config_(config),
      clock_(clock),
      latency_(model, layout, config.machine, config.routing),
      random_(config.seed),
      vocab_size_(model.vocab_size),
      groups_out_(layout.min_groups_out) {
  const auto block = static_cast<double>(layout.block_bytes);
  up_.per_block = block / (config.machine.link_up_gbps * 1e3);
  down_.per_block = block / (config.machine.link_down_gbps * 1e3);
}

void SimExecutor::advance(Link& link, Micros from, Micros to, Micros taken) {
  Micros left = std::max(0.0, to - from - taken);
  while (!link.queue.empty() && link.spent + left >= link.per_block) {
    left -= link.per_block - link.spent;
    link.spent = 0;
    link.busy += link.per_block;
    link.done.push_back(link.queue.front());
    link.queue.pop_front();
  }
  link.spent = link.queue.empty() ? 0 : link.spent + left;
}

Micros SimExecutor::next_end(const Link& link) {
  // A hair more, so that rounding never leaves the copy unfinished.
  return link.queue.empty() ? std::numeric_limits<double>::infinity()
                            : (link.per_block - link.spent) * (1 + 1e-9) + 1e-3;
}

Micros SimExecutor::move_boundary(const StepPlan& plan) {
  if (!plan.boundary) return 0;
  const int target = plan.boundary->groups_out;
  VAMP_CHECK(target >= layout_.min_groups_out && target <= layout_.max_groups_out(), "boundary {}",
             target);
  const int moved = std::abs(target - groups_out_);
  const int restored = std::max(0, groups_out_ - target);
  groups_out_ = target;
  return latency_.boundary_move(moved, restored);
}

// One of the tokens that the grammar allows; any where it allows none.
TokenId SimExecutor::constrained_token(TokenMatcher& matcher, uint64_t hash) const {
  std::vector<uint32_t> allowed((static_cast<size_t>(vocab_size_) + 31) / 32);
  matcher.fill(allowed);
  std::vector<TokenId> tokens;
  for (TokenId token = 0; token < vocab_size_; ++token) {
    if ((allowed[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0)
      tokens.push_back(token);
  }
  if (tokens.empty()) return static_cast<TokenId>(hash % static_cast<uint64_t>(vocab_size_));
  const TokenId token = tokens[hash % tokens.size()];
  matcher.accept(token);
  return token;
}

StepShape SimExecutor::take_batch(const StepPlan& plan, StepResult& result) {
  for (const StartRequest& start : plan.start) {
    VAMP_CHECK(!rows_.contains(start.slot), "slot {} is taken", start.slot);
    const size_t prompt = static_cast<size_t>(start.prompt_tokens) * sizeof(TokenId);
    Row& row = rows_[start.slot];
    row.prompt_hash = XXH3_64bits_withSeed(start.tokens.data(), prompt, start.sampling.seed);
    row.tokens = static_cast<int>(start.tokens.size());
    if (!start.sampling.grammar) continue;
    row.matcher = start.sampling.grammar->start(start.sampling.stop_token_ids);
    for (auto i = static_cast<size_t>(start.prompt_tokens); i < start.tokens.size(); ++i)
      row.matcher->accept(start.tokens[i]);
  }
  StepShape shape;
  shape.sequences = static_cast<int>(plan.batch.size());
  for (const BatchEntry& entry : plan.batch) {
    const auto found = rows_.find(entry.slot);
    VAMP_CHECK(found != rows_.end(), "slot {} is unknown", entry.slot);
    Row& row = found->second;
    const int end = entry.first + entry.count;
    VAMP_CHECK(entry.count > 0 && end <= row.tokens, "tokens [{}, {}) of {}", entry.first, end,
               row.tokens);
    if (entry.count == 1) {
      ++shape.decode_requests;
      shape.decode_context += end;
    } else {
      shape.prefill_tokens += entry.count;
      shape.prefill_pairs += entry.count * (entry.first + entry.count / 2.0);
      shape.prefill_context += end;
    }
    shape.sampled += entry.scored;
    for (int i = 0; i < entry.scored; ++i) {
      SampledToken& scored = result.scored.emplace_back();
      scored.slot = entry.slot;
    }
    if (!entry.sample) continue;
    ++shape.sampled;
    const uint64_t hash = Random(row.prompt_hash + static_cast<uint64_t>(end)).next();
    SampledToken sampled;
    sampled.slot = entry.slot;
    sampled.token = row.matcher ? constrained_token(*row.matcher, hash)
                                : static_cast<TokenId>(hash % static_cast<uint64_t>(vocab_size_));
    result.tokens.push_back(std::move(sampled));
    row.tokens = end + 1;
  }
  return shape;
}

void SimExecutor::count_experts(double tokens, StepResult& result) {
  tokens_since_counts_ += tokens;
  if (config_.expert_count_interval <= 0 || ++steps_since_counts_ < config_.expert_count_interval) {
    return;
  }
  const std::vector<double>& share = latency_.routing().share();
  for (int l = 0; l < layout_.moe_layers; ++l) {
    for (const double q : share) {
      result.expert_counts.push_back(static_cast<uint32_t>(std::lround(q * tokens_since_counts_)));
    }
  }
  steps_since_counts_ = 0;
  tokens_since_counts_ = 0;
}

void SimExecutor::report_copies(StepResult& result) {
  result.promoted = std::exchange(up_.done, {});
  result.demoted = std::exchange(down_.done, {});
  result.promote_us = std::exchange(up_.busy, 0);
  result.demote_us = std::exchange(down_.busy, 0);
}

void SimExecutor::submit(StepPlan plan) {
  VAMP_CHECK(in_flight() < 2, "at most two plans may be in flight");
  StepResult result;
  result.step = plan.step;
  result.start = std::max(clock_.now(), last_end_);
  advance(up_, last_end_, result.start, 0);
  advance(down_, last_end_, result.start, 0);
  if (plan.reset) {
    failed_ = false;
    rows_.clear();
  } else if (!failed_ && config_.failure_rate > 0 && !plan.await_copies &&
             random_.chance(config_.failure_rate)) {
    failed_ = true;
  }
  if (failed_) {
    result.executed = false;
    result.failure = "simulated failure";
    result.end = last_end_ = result.start + config_.machine.step_overhead;
    advance(up_, result.start, result.end, 0);
    advance(down_, result.start, result.end, 0);
    report_copies(result);
    results_.push_back(std::move(result));
    return;
  }
  for (const RequestSlot slot : plan.release) rows_.erase(slot);
  result.boundary_us = move_boundary(plan);
  up_.queue.insert(up_.queue.end(), plan.promote.begin(), plan.promote.end());
  down_.queue.insert(down_.queue.end(), plan.demote.begin(), plan.demote.end());
  for (const TableEdit& edit : plan.edit_tables) {
    VAMP_CHECK(rows_.contains(edit.slot), "slot {} is unknown", edit.slot);
  }

  const StepShape shape = take_batch(plan, result);
  const StepTime time = latency_.step(shape, groups_out_, plan.staging);
  Micros duration = config_.fixed_step > 0 ? config_.fixed_step : time.total;
  if (plan.await_copies) {
    const Micros until = std::min(next_end(up_), next_end(down_));
    VAMP_CHECK(up_.done.size() + down_.done.size() > 0 || std::isfinite(until),
               "nothing to wait for");
    if (up_.done.empty() && down_.done.empty()) duration = until;
  } else {
    const Micros copying = std::max(static_cast<double>(up_.queue.size()) * up_.per_block,
                                    static_cast<double>(down_.queue.size()) * down_.per_block);
    duration += config_.machine.copy_slowdown * std::min(duration, copying);
  }
  result.end = last_end_ = result.start + result.boundary_us + duration;
  result.staging = time.staging;
  result.experts_per_layer = static_cast<float>(time.experts_per_layer);
  advance(up_, result.start, result.end, time.link_busy);
  advance(down_, result.start, result.end, 0);
  report_copies(result);
  if (shape.tokens() > 0) count_experts(shape.tokens(), result);
  results_.push_back(std::move(result));
}

StepResult SimExecutor::wait() {
  VAMP_CHECK(!results_.empty(), "no plan is in flight");
  StepResult result = std::move(results_.front());
  results_.pop_front();
  clock_.sleep_until(result.end);
  return result;
}

}  // namespace vamp
