#include "server/activity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace vamp {
namespace {

// The columns of `seconds`, in the order of Activity::row.
constexpr const char* kColumns[] = {
    "second",        "experts",        "staging",        "kv_in_use",     "kv_cached",
    "kv_free",       "host_kv",        "groups_out",     "running",       "waiting",
    "hit_rate",      "preemptions",    "prefill_tokens", "decode_tokens", "staged_bytes",
    "demoted_bytes", "promoted_bytes", "stall_us",       "ttft_p50",      "ttft_p90",
    "tpot_p50",      "tpot_p90",       "boundary_moves"};

nlohmann::json quantile(std::vector<float> values, double q) {
  if (values.empty()) return nullptr;
  const auto at = static_cast<size_t>(q * static_cast<double>(values.size() - 1) + 0.5);
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at), values.end());
  return values[at];
}

nlohmann::json price_or_null(double cost) {
  return std::isfinite(cost) ? nlohmann::json(cost) : nlohmann::json(nullptr);
}

template <typename Entry>
void bound(std::deque<Entry>& entries, size_t most) {
  while (entries.size() > most) entries.pop_front();
}

}  // namespace

void Activity::start(const MemoryLayout& layout, const SchedulerConfig& scheduler, Micros now) {
  const std::lock_guard lock(mutex_);
  layout_ = layout;
  start_ = now;
  started_ = true;
  Second first;
  first.scheduler.groups_out = layout.min_groups_out;
  first.scheduler.total_blocks = first.scheduler.free_blocks = layout.base_blocks();
  first.scheduler.host_total_blocks = scheduler.host_blocks;
  first.bank_groups = layout.bank_groups(layout.min_groups_out);
  seconds_.push_back(std::move(first));
}

// A second without a step is not kept: it is as the one before, with nothing done.
Activity::Second& Activity::second_at(Micros time) {
  const int64_t second =
      std::max(seconds_.back().second, static_cast<int64_t>((time - start_) / kSecond));
  if (second > seconds_.back().second) {
    Second next;
    next.second = second;
    next.scheduler = seconds_.back().scheduler;
    next.bank_groups = seconds_.back().bank_groups;
    seconds_.push_back(std::move(next));
    while (seconds_.size() > 1 && seconds_[1].second + static_cast<int64_t>(kMaxSeconds) <= second)
      seconds_.pop_front();
  }
  return seconds_.back();
}

void Activity::on_step(const StepStats& step) {
  const std::lock_guard lock(mutex_);
  if (!started_) return;
  Second& second = second_at(step.end);
  second.scheduler = step.scheduler;
  second.bank_groups = step.bank_groups;
  second.prefill_tokens += step.prefill_tokens;
  second.decode_tokens += step.decode_tokens;
  second.staged_bytes += step.staging.staged_bytes;
  second.stall += step.staging.stall;
  second.demoted_bytes += step.demoted_bytes;
  second.promoted_bytes += step.promoted_bytes;
}

void Activity::on_finished(const RequestEvent& event, const RequestStats& stats) {
  const std::lock_guard lock(mutex_);
  if (!started_) return;
  requests_.push_back({++changes_, stats, event.reason});
  bound(requests_, kMaxRequests);
  if (stats.first_token <= 0) return;
  Second& second = second_at(stats.finished);
  second.ttft.push_back(static_cast<float>((stats.first_token - stats.arrival) / kSecond));
  if (stats.output_tokens > 1)
    second.tpot.push_back(static_cast<float>((stats.finished - stats.first_token) / kSecond /
                                             (stats.output_tokens - 1)));
}

void Activity::on_decision(const DecisionRecord& record) {
  const std::lock_guard lock(mutex_);
  if (!started_) return;
  const auto known =
      std::find_if(decisions_.begin(), decisions_.end(),
                   [&](const Decision& decision) { return decision.record.id == record.id; });
  if (known != decisions_.end()) decisions_.erase(known);
  decisions_.push_back({++changes_, record});
  // Large, and not shown.
  decisions_.back().record.inputs.evictable.clear();
  decisions_.back().record.inputs.victims.clear();
  bound(decisions_, kMaxDecisions);
}

nlohmann::json Activity::row(const Second& second) const {
  const SchedulerStats& s = second.scheduler;
  const auto group = static_cast<double>(layout_.group_bytes());
  const auto block = static_cast<double>(layout_.block_bytes);
  return nlohmann::json::array(
      {second.second,
       (layout_.total_groups() - s.groups_out) * group,
       second.bank_groups * group,
       s.referenced_blocks * block,
       s.cached_blocks * block,
       s.free_blocks * block,
       s.host_used_blocks * block,
       s.groups_out,
       s.running,
       s.waiting,
       s.queried_tokens > 0 ? nlohmann::json(s.hit_rate) : nlohmann::json(nullptr),
       s.preemptions,
       second.prefill_tokens,
       second.decode_tokens,
       second.staged_bytes,
       second.demoted_bytes,
       second.promoted_bytes,
       second.stall,
       quantile(second.ttft, 0.5),
       quantile(second.ttft, 0.9),
       quantile(second.tpot, 0.5),
       quantile(second.tpot, 0.9),
       s.boundary_moves});
}

// Every second up to `last`, also those in which nothing happened.
nlohmann::json Activity::seconds_since(int64_t after, int64_t last) const {
  nlohmann::json rows = nlohmann::json::array();
  const int64_t first =
      std::max({after + 1, int64_t{0}, last - static_cast<int64_t>(kMaxSeconds) + 1});
  auto next = seconds_.begin();
  Second quiet;
  for (int64_t at = first; at <= last; ++at) {
    while (next != seconds_.end() && next->second <= at) {
      if (next->second == at) break;
      quiet.scheduler = next->scheduler;
      quiet.bank_groups = next->bank_groups;
      ++next;
    }
    if (next != seconds_.end() && next->second == at) {
      rows.push_back(row(*next));
    } else {
      quiet.second = at;
      rows.push_back(row(quiet));
    }
  }
  return rows;
}

nlohmann::json Activity::since(const Position& after, Micros now, bool single) const {
  const std::lock_guard lock(mutex_);
  nlohmann::json out = {{"columns", kColumns},
                        {"seconds", nlohmann::json::array()},
                        {"single", single},
                        {"decisions", nlohmann::json::array()},
                        {"requests", nlohmann::json::array()}};
  if (!started_) return out;
  // The present second is not over.
  const int64_t last =
      std::max(seconds_.back().second, static_cast<int64_t>((now - start_) / kSecond)) - 1;
  out["seconds"] = seconds_since(after.second, last);
  out["position"] = {{"second", std::max(after.second, last)}, {"change", changes_}};
  out["memory"] = {{"weights", layout_.dense_weight_bytes},
                   {"reserve", layout_.reserve_bytes},
                   {"groups", layout_.total_groups()},
                   {"max_groups_out", layout_.max_groups_out()},
                   {"block_tokens", layout_.block_tokens},
                   {"host_kv", static_cast<double>(seconds_.back().scheduler.host_total_blocks) *
                                   static_cast<double>(layout_.block_bytes)}};
  if (!single) return out;
  for (const Decision& decision : decisions_) {
    if (decision.change <= after.change) continue;
    const DecisionRecord& record = decision.record;
    nlohmann::json costs = nlohmann::json::array();
    for (const ActionCost& cost : record.decision.costs)
      costs.push_back({{"action", action_name(cost.kind)}, {"price", price_or_null(cost.cost)}});
    out["decisions"].push_back({{"id", record.id},
                                {"time", (record.inputs.now - start_) / kSecond},
                                {"until", (record.until - start_) / kSecond},
                                {"repeats", record.repeats},
                                {"request", record.inputs.request},
                                {"action", action_name(record.decision.kind)},
                                {"needed", record.inputs.gap_blocks},
                                {"won", record.blocks_won},
                                {"asked_again", record.reused_tokens},
                                {"note", record.decision.note},
                                {"costs", std::move(costs)}});
  }
  for (const Request& request : requests_) {
    if (request.change <= after.change) continue;
    const RequestStats& stats = request.stats;
    const auto when = [&](Micros time) {
      return time > 0 ? nlohmann::json((time - start_) / kSecond) : nlohmann::json(nullptr);
    };
    out["requests"].push_back({{"id", stats.id},
                               {"session", fmt::format("{:08x}", stats.session & 0xffffffff)},
                               {"arrival", when(stats.arrival)},
                               {"scheduled", when(stats.first_scheduled)},
                               {"first_token", when(stats.first_token)},
                               {"finished", when(stats.finished)},
                               {"prompt", stats.prompt_tokens},
                               {"cached", stats.cached_tokens},
                               {"host_cached", stats.host_cached_tokens},
                               {"output", stats.output_tokens},
                               {"preemptions", stats.preemptions},
                               {"reason", finish_reason_name(request.reason)}});
  }
  return out;
}

}  // namespace vamp
