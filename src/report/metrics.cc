#include "report/metrics.h"

#include <algorithm>
#include <numeric>

namespace vamp {
namespace {

double ratio(double part, double whole) {
  return whole > 0 ? part / whole : NAN;
}

// Means over time: a gauge holds from one step's end to the next step's end.
struct TimeMean {
  double sum = 0, time = 0;
  void add(double value, Micros dt) {
    sum += value * dt;
    time += dt;
  }
  double mean() const { return ratio(sum, time); }
};

void summarize_turns(const RunRecord& run, RunSummary& out) {
  std::vector<double> ttft, ttft_warm, tpot, queue, e2e;
  double prompt = 0, cached = 0, host = 0, warm_prompt = 0, warm_cached = 0, output = 0,
         preemptions = 0;
  for (const TurnRecord& turn : run.turns) {
    const RequestStats& stats = turn.stats;
    ++out.turns;
    if (!turn.answered()) {
      ++out.failed_turns;
      continue;
    }
    if (!std::isnan(turn.tpot())) tpot.push_back(turn.tpot() / kSecond);
    if (!in_window(run, turn)) continue;
    ++out.window_turns;
    ttft.push_back(turn.ttft() / kSecond);
    if (!std::isnan(stats.queued)) queue.push_back(stats.queued / kSecond);
    e2e.push_back((stats.finished - stats.arrival) / kSecond);
    const double hits = stats.cached_tokens + stats.host_cached_tokens;
    prompt += stats.prompt_tokens;
    cached += hits;
    host += stats.host_cached_tokens;
    if (turn.turn > 0) {
      ++out.warm_turns;
      ttft_warm.push_back(turn.ttft() / kSecond);
      warm_prompt += stats.prompt_tokens;
      warm_cached += hits;
    }
    output += stats.output_tokens;
    preemptions += stats.preemptions;
  }
  out.window_s = std::max(0.0, run.window.end - run.window.begin) / kSecond;
  out.ttft_s = distribution(std::move(ttft));
  out.ttft_warm_s = distribution(std::move(ttft_warm));
  out.tpot_s = distribution(std::move(tpot));
  out.queue_s = distribution(std::move(queue));
  out.e2e_s = distribution(std::move(e2e));
  out.requests_per_s = out.window_s > 0 ? out.window_turns / out.window_s : 0;
  out.output_tokens_per_s = out.window_s > 0 ? output / out.window_s : 0;
  if (run.cached_known) {
    out.prefix_hit_rate = ratio(cached, prompt);
    out.prefix_hit_rate_warm = ratio(warm_cached, warm_prompt);
  }
  if (run.from_client) return;
  out.host_hit_rate = ratio(host, prompt);
  out.preemptions_per_1000_turns = ratio(1000 * preemptions, out.window_turns);
}

void summarize_steps(const RunRecord& run, RunSummary& out) {
  TimeMean use, full, groups, running, waiting;
  double experts = 0, expert_steps = 0;
  for (size_t i = 0; i < run.steps.size(); ++i) {
    const StepStats& step = run.steps[i];
    const SchedulerStats& now = step.scheduler;
    const Micros until = i + 1 < run.steps.size() ? run.steps[i + 1].end : run.duration;
    const Micros dt = std::max(0.0, until - step.end);
    const double blocks = std::max(now.total_blocks, 1);
    use.add(now.referenced_blocks / blocks, dt);
    full.add((now.referenced_blocks + now.cached_blocks) / blocks, dt);
    groups.add(now.groups_out, dt);
    running.add(now.running, dt);
    waiting.add(now.waiting, dt);
    out.pool_use_max = std::fmax(out.pool_use_max, now.referenced_blocks / blocks);
    out.groups_out_max = std::max(out.groups_out_max, now.groups_out);
    out.staged_bytes += static_cast<double>(step.staging.staged_bytes);
    out.activated_bytes += static_cast<double>(step.staging.activated_bytes);
    out.demoted_bytes += static_cast<double>(step.demoted_bytes);
    out.promoted_bytes += static_cast<double>(step.promoted_bytes);
    out.staging_stall_s += step.staging.stall / kSecond;
    if (step.experts_per_layer > 0) {
      experts += static_cast<double>(step.experts_per_layer);
      ++expert_steps;
    }
    if (!step.executed) ++out.failed_steps;
  }
  out.steps = static_cast<int>(run.steps.size());
  out.pool_use_mean = use.mean();
  out.pool_full_mean = full.mean();
  out.groups_out_mean = groups.mean();
  out.running_mean = running.mean();
  out.waiting_mean = waiting.mean();
  out.experts_per_layer_mean = ratio(experts, expert_steps);
  if (!run.steps.empty()) {
    out.groups_out_end = run.steps.back().scheduler.groups_out;
    out.boundary_moves = run.steps.back().scheduler.boundary_moves;
  }
}

void summarize_decisions(const RunRecord& run, RunSummary& out) {
  std::array<double, kNumActionKinds> sum{}, priced{};
  for (const DecisionRow& decision : run.decisions) {
    const size_t kind = static_cast<size_t>(decision.kind);
    ActionSummary& action = out.actions.at(kind);
    ++action.count;
    action.blocks_won += decision.blocks_won;
    action.reused_tokens += decision.reused_tokens;
    if (std::isfinite(decision.costs.at(kind))) {
      sum[kind] += decision.costs[kind];
      ++priced[kind];
    }
  }
  for (size_t k = 0; k < sum.size(); ++k) out.actions[k].mean_cost_us = ratio(sum[k], priced[k]);
}

void fill_slo_grid(const RunRecord& run, RunSummary& out) {
  if (!(out.window_s > 0)) return;
  for (const TurnRecord& turn : run.turns) {
    if (!turn.answered() || !in_window(run, turn)) continue;
    const double tpot_ms = std::isnan(turn.tpot()) ? 0 : turn.tpot() / 1e3;
    for (size_t t = 0; t < kSloTtftSeconds.size(); ++t) {
      for (size_t p = 0; p < kSloTpotMillis.size(); ++p) {
        if (turn.ttft() <= kSloTtftSeconds[t] * kSecond && tpot_ms <= kSloTpotMillis[p]) {
          out.slo[t][p] += 1 / out.window_s;
        }
      }
    }
  }
}

}  // namespace

double quantile(const std::vector<double>& sorted, double q) {
  if (sorted.empty()) return NAN;
  const double at = q * static_cast<double>(sorted.size() - 1);
  const size_t low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (sorted[high] - sorted[low]) * (at - static_cast<double>(low));
}

Distribution distribution(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {sum / static_cast<double>(values.size()), quantile(values, 0.5), quantile(values, 0.9),
          quantile(values, 0.99)};
}

bool in_window(const RunRecord& run, const TurnRecord& turn) {
  if (turn.turn == 0 && !run.count_first_turns) return false;
  return turn.stats.arrival >= run.window.begin && turn.stats.arrival <= run.window.end;
}

RunSummary summarize(const RunRecord& run) {
  RunSummary out;
  summarize_turns(run, out);
  summarize_steps(run, out);
  summarize_decisions(run, out);
  fill_slo_grid(run, out);
  return out;
}

}  // namespace vamp
