#include "report/series.h"

#include <algorithm>
#include <functional>
#include <map>

#include "report/metrics.h"

namespace vamp {
namespace {

// Equal stretches of a run's time.
class Buckets {
 public:
  Buckets(Micros duration, int count) : width_(std::max(duration, 1.0) / count), count_(count) {}
  int count() const { return count_; }
  Micros width() const { return width_; }
  int index(Micros time) const {
    return std::clamp(static_cast<int>(time / width_), 0, count_ - 1);
  }
  Micros begin(int bucket) const { return bucket * width_; }
  double centre_s(int bucket) const { return (bucket + 0.5) * width_ / kSecond; }

 private:
  Micros width_;
  int count_;
};

// Time-weighted means of gauges that hold from one step's end to the next's.
class GaugeMeans {
 public:
  GaugeMeans(const Buckets& buckets, size_t gauges)
      : buckets_(buckets),
        sums_(gauges, std::vector<double>(static_cast<size_t>(buckets.count()), 0.0)),
        time_(static_cast<size_t>(buckets.count()), 0.0) {}

  void hold(const std::vector<double>& values, Micros from, Micros to) {
    for (int b = buckets_.index(from); b < buckets_.count() && buckets_.begin(b) < to; ++b) {
      const size_t bucket = static_cast<size_t>(b);
      const Micros dt = std::min(to, buckets_.begin(b + 1)) - std::max(from, buckets_.begin(b));
      if (dt <= 0) continue;
      time_[bucket] += dt;
      for (size_t g = 0; g < values.size(); ++g) sums_[g][bucket] += values[g] * dt;
    }
  }
  std::vector<double> line(size_t gauge) const {
    std::vector<double> out(time_.size(), NAN);
    for (size_t b = 0; b < out.size(); ++b) {
      if (time_[b] > 0) out[b] = sums_[gauge][b] / time_[b];
    }
    return out;
  }

 private:
  const Buckets& buckets_;
  std::vector<std::vector<double>> sums_;
  std::vector<double> time_;
};

const std::vector<std::string> kGaugeNames = {"kv_used",    "kv_cached",  "kv_free", "experts",
                                              "banks",      "host_kv",    "running", "waiting",
                                              "groups_out", "preemptions"};

std::vector<double> gauges(const MemoryFacts& memory, const StepStats& step) {
  const SchedulerStats& now = step.scheduler;
  const double block = static_cast<double>(memory.block_bytes);
  const double group = static_cast<double>(memory.group_bytes);
  const int resident = memory.total_groups - std::max(now.groups_out, memory.missing_groups);
  return {now.referenced_blocks * block,
          now.cached_blocks * block,
          now.free_blocks * block,
          resident * group,
          step.bank_groups * group,
          now.host_used_blocks * block,
          static_cast<double>(now.running),
          static_cast<double>(now.waiting),
          static_cast<double>(now.groups_out),
          static_cast<double>(now.preemptions)};
}

void add_gauges(const RunRecord& run, const Buckets& buckets, RunSeries& out) {
  GaugeMeans means(buckets, kGaugeNames.size());
  for (size_t i = 0; i < run.steps.size(); ++i) {
    const Micros from = i == 0 ? 0 : run.steps[i].end;
    const Micros to = i + 1 < run.steps.size() ? run.steps[i + 1].end : run.duration;
    means.hold(gauges(run.memory, run.steps[i]), from, to);
  }
  for (size_t g = 0; g < kGaugeNames.size(); ++g)
    out.lines.push_back({kGaugeNames[g], means.line(g)});
}

// Sums over each bucket, a second. Nothing where there are no steps.
void add_rate(const RunRecord& run, const Buckets& buckets, const char* name,
              const std::function<double(const StepStats&)>& value, RunSeries& out) {
  Line line{name, std::vector<double>(static_cast<size_t>(buckets.count()),
                                      run.steps.empty() ? NAN : 0.0)};
  for (const StepStats& step : run.steps) {
    line.values[static_cast<size_t>(buckets.index(step.end))] +=
        value(step) / (buckets.width() / kSecond);
  }
  out.lines.push_back(std::move(line));
}

// Figures of turns over a sliding stretch of a twentieth of the run around each bucket.
void add_turn_lines(const RunRecord& run, const Buckets& buckets, RunSeries& out) {
  struct Bucket {
    std::vector<double> ttft;
    double prompt = 0, cached = 0;
  };
  std::vector<Bucket> held(static_cast<size_t>(buckets.count()));
  for (const TurnRecord& turn : run.turns) {
    if (!turn.answered()) continue;
    held[static_cast<size_t>(buckets.index(turn.stats.arrival))].ttft.push_back(turn.ttft() /
                                                                                kSecond);
    const Micros looked_up = run.from_client ? turn.stats.arrival : turn.stats.first_scheduled;
    Bucket& scheduled = held[static_cast<size_t>(buckets.index(looked_up))];
    scheduled.prompt += turn.stats.prompt_tokens;
    scheduled.cached += turn.stats.cached_tokens + turn.stats.host_cached_tokens;
  }
  const int reach = std::max(1, buckets.count() / 40);
  Line p90{"ttft_p90", {}}, hits{"hit_rate", {}};
  for (int b = 0; b < buckets.count(); ++b) {
    std::vector<double> ttft;
    double prompt = 0, cached = 0;
    for (int i = std::max(0, b - reach); i <= std::min(buckets.count() - 1, b + reach); ++i) {
      const Bucket& bucket = held[static_cast<size_t>(i)];
      ttft.insert(ttft.end(), bucket.ttft.begin(), bucket.ttft.end());
      prompt += bucket.prompt;
      cached += bucket.cached;
    }
    p90.values.push_back(distribution(std::move(ttft)).p90);
    hits.values.push_back(prompt > 0 && run.cached_known ? cached / prompt : NAN);
  }
  out.lines.push_back(std::move(p90));
  out.lines.push_back(std::move(hits));
}

void add_by_turn(const RunRecord& run, RunSeries& out) {
  std::map<int, std::vector<double>> ttft;  // by turn from 1
  for (const TurnRecord& turn : run.turns) {
    if (turn.answered()) ttft[turn.turn + 1].push_back(turn.ttft() / kSecond);
  }
  if (ttft.empty()) return;
  for (const auto& [turn, values] : ttft) {
    out.by_turn.push_back({turn, static_cast<int>(values.size()), distribution(values).p50});
  }
  const int turns = ttft.rbegin()->first;
  const int bins = std::min(10, turns);
  for (int b = 0; b < bins; ++b) {
    TurnBin bin{turns * b / bins + 1, turns * (b + 1) / bins, 0, NAN};
    std::vector<double> values;
    for (int t = bin.first_turn; t <= bin.last_turn; ++t) {
      if (const auto found = ttft.find(t); found != ttft.end()) {
        values.insert(values.end(), found->second.begin(), found->second.end());
      }
    }
    bin.turns = static_cast<int>(values.size());
    bin.ttft_p90_s = distribution(std::move(values)).p90;
    out.bins.push_back(bin);
  }
}

void add_ttft(const RunRecord& run, int max_points, RunSeries& out) {
  std::vector<double> sorted;
  for (const TurnRecord& turn : run.turns) {
    if (!turn.answered()) continue;
    sorted.push_back(turn.ttft() / kSecond);
    out.ttft.push_back({turn.stats.arrival / kSecond, turn.ttft() / kSecond});
  }
  std::sort(sorted.begin(), sorted.end());
  if (!sorted.empty()) {
    for (int q = 0; q <= 100; q += 2) out.ttft_quantiles_s.push_back(quantile(sorted, q / 100.0));
  }
  const size_t limit = static_cast<size_t>(max_points);
  if (out.ttft.size() > limit) {
    const size_t all = out.ttft.size();
    for (size_t i = 0; i < limit; ++i) out.ttft[i] = out.ttft[i * all / limit];
    out.ttft.resize(limit);
  }
}

void add_experts(const RunRecord& run, RunSeries& out) {
  std::map<int, std::pair<int, double>> by_tokens;
  for (const StepStats& step : run.steps) {
    if (!(step.experts_per_layer > 0)) continue;
    int bucket = 1;
    while (bucket < step.prefill_tokens + step.decode_tokens) bucket *= 2;
    auto& [steps, sum] = by_tokens[bucket];
    ++steps;
    sum += static_cast<double>(step.experts_per_layer);
  }
  for (const auto& [tokens, value] : by_tokens) {
    out.experts.push_back({tokens, value.first, value.second / value.first});
  }
}

ExpertsByLayer experts_by_layer(const RunRecord& run, int count) {
  const Buckets buckets(run.duration, count);
  ExpertsByLayer out;
  for (int b = 0; b < count; ++b) out.time_s.push_back(buckets.centre_s(b));
  std::vector<int> steps(static_cast<size_t>(count), 0);
  for (const StepStats& step : run.steps) {
    if (step.experts_by_layer.empty()) continue;
    const size_t bucket = static_cast<size_t>(buckets.index(step.end));
    ++steps[bucket];
    out.mean.resize(step.experts_by_layer.size(),
                    std::vector<double>(static_cast<size_t>(count), 0.0));
    for (size_t layer = 0; layer < out.mean.size(); ++layer)
      out.mean[layer][bucket] += step.experts_by_layer[layer];
  }
  for (auto& layer : out.mean) {
    for (size_t b = 0; b < layer.size(); ++b) layer[b] = steps[b] > 0 ? layer[b] / steps[b] : NAN;
  }
  return out;
}

void add_decisions(const RunRecord& run, int count, RunSeries& out) {
  const Buckets buckets(run.duration, count);
  for (int b = 0; b < count; ++b) out.decision_time_s.push_back(buckets.centre_s(b));
  std::array<std::vector<double>, kNumActionKinds> chosen, runner_up, refused;
  for (auto& line : out.decisions) line.assign(static_cast<size_t>(count), 0);
  for (const DecisionRow& decision : run.decisions) {
    const size_t kind = static_cast<size_t>(decision.kind);
    ++out.decisions.at(kind)[static_cast<size_t>(buckets.index(decision.time))];
    double best_other = INFINITY;
    for (size_t k = 0; k < decision.costs.size(); ++k) {
      if (std::isnan(decision.costs[k])) continue;
      ++out.prices[k].considered;
      if (k == kind || !std::isfinite(decision.costs[k])) continue;
      refused[k].push_back(decision.costs[k]);
      best_other = std::min(best_other, decision.costs[k]);
    }
    ++out.prices[kind].chosen;
    if (std::isfinite(decision.costs[kind])) chosen[kind].push_back(decision.costs[kind]);
    if (std::isfinite(best_other)) runner_up[kind].push_back(best_other);
  }
  for (size_t k = 0; k < out.prices.size(); ++k) {
    out.prices[k].chosen_p50 = distribution(std::move(chosen[k])).p50;
    out.prices[k].runner_up_p50 = distribution(std::move(runner_up[k])).p50;
    out.prices[k].refused_p50 = distribution(std::move(refused[k])).p50;
  }
}

}  // namespace

RunSeries make_series(const RunRecord& run, const SeriesOptions& options) {
  RunSeries out;
  const Buckets buckets(run.duration, options.buckets);
  for (int b = 0; b < buckets.count(); ++b) out.time_s.push_back(buckets.centre_s(b));
  add_gauges(run, buckets, out);
  add_turn_lines(run, buckets, out);
  add_rate(
      run, buckets, "staged_rate",
      [](const StepStats& s) { return static_cast<double>(s.staging.staged_bytes); }, out);
  add_rate(
      run, buckets, "activated_rate",
      [](const StepStats& s) { return static_cast<double>(s.staging.activated_bytes); }, out);
  add_rate(
      run, buckets, "kv_copy_rate",
      [](const StepStats& s) { return static_cast<double>(s.demoted_bytes + s.promoted_bytes); },
      out);
  add_rate(
      run, buckets, "decode_rate", [](const StepStats& s) { return s.decode_tokens; }, out);
  add_rate(
      run, buckets, "prefill_rate", [](const StepStats& s) { return s.prefill_tokens; }, out);
  add_ttft(run, options.max_points, out);
  add_by_turn(run, out);
  add_experts(run, out);
  out.experts_by_layer = experts_by_layer(run, options.heat_buckets);
  add_decisions(run, options.decision_buckets, out);
  return out;
}

}  // namespace vamp
