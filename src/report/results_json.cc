#include "report/results_json.h"

namespace vamp {
namespace {

using Json = nlohmann::ordered_json;

Json to_json(const Distribution& d) {
  return {{"mean", d.mean}, {"p50", d.p50}, {"p90", d.p90}, {"p99", d.p99}};
}

Json pairs_json(const std::vector<std::pair<std::string, std::string>>& pairs) {
  Json out = Json::object();
  for (const auto& [name, value] : pairs) out[name] = value;
  return out;
}

// Where the boundary stood: [seconds, groups given up], a point for each change.
Json boundary_json(const RunRecord& run) {
  Json out = Json::array();
  int last = -1;
  for (const StepStats& step : run.steps) {
    if (step.scheduler.groups_out == last) continue;
    last = step.scheduler.groups_out;
    out.push_back({step.end / kSecond, last});
  }
  return out;
}

Json slo_json(const SloGrid& grid) {
  Json rates = Json::array();
  for (const auto& row : grid) rates.push_back(row);
  return {{"ttft_s", kSloTtftSeconds},
          {"tpot_ms", kSloTpotMillis},
          {"requests_per_s", std::move(rates)}};
}

Json actions_json(const RunSummary& summary) {
  Json out = Json::object();
  for (size_t k = 0; k < summary.actions.size(); ++k) {
    const ActionSummary& action = summary.actions[k];
    if (action.count == 0) continue;
    out[action_name(static_cast<ActionKind>(k))] = {{"count", action.count},
                                                    {"mean_cost_us", action.mean_cost_us},
                                                    {"blocks_won", action.blocks_won},
                                                    {"reused_tokens", action.reused_tokens}};
  }
  return out;
}

Json memory_json(const MemoryFacts& m) {
  return {{"dense_bytes", m.dense_bytes},
          {"reserve_bytes", m.reserve_bytes},
          {"group_bytes", m.group_bytes},
          {"block_bytes", m.block_bytes},
          {"base_pool_bytes", m.base_pool_bytes},
          {"kv_bytes_per_token", m.kv_bytes_per_token},
          {"total_groups", m.total_groups},
          {"missing_groups", m.missing_groups},
          {"max_groups_out", m.max_groups_out},
          {"moe_layers", m.moe_layers},
          {"experts_per_layer", m.experts_per_layer}};
}

// What only the engine's own record tells, beyond figures that are NaN without it.
constexpr const char* kEngineFigures[] = {"groups_out",     "boundary_moves",  "boundary_over_time",
                                          "staged_bytes",   "activated_bytes", "demoted_bytes",
                                          "promoted_bytes", "staging_stall_s", "steps",
                                          "failed_steps",   "decisions",       "memory"};

Json run_json(const RunRecord& run, const RunSummary& s) {
  Json out = {{"policy", run.policy},
              {"ttft_s", to_json(s.ttft_s)},
              {"ttft_warm_s", to_json(s.ttft_warm_s)},
              {"tpot_s", to_json(s.tpot_s)},
              {"queue_s", to_json(s.queue_s)},
              {"e2e_s", to_json(s.e2e_s)},
              {"requests_per_s", s.requests_per_s},
              {"output_tokens_per_s", s.output_tokens_per_s},
              {"prefix_hit_rate", s.prefix_hit_rate},
              {"prefix_hit_rate_warm", s.prefix_hit_rate_warm},
              {"host_hit_rate", s.host_hit_rate},
              {"preemptions_per_1000_turns", s.preemptions_per_1000_turns},
              {"turns", s.turns},
              {"planned_turns", run.planned_turns},
              {"failed_turns", s.failed_turns},
              {"window_turns", s.window_turns},
              {"sessions", run.planned_sessions},
              {"duration_s", run.duration / kSecond},
              {"cut", run.cut},
              {"window",
               {{"begin_s", run.window.begin / kSecond},
                {"end_s", run.window.end / kSecond},
                {"rule", run.window.rule},
                {"note", run.window.note}}},
              {"pool_use",
               {{"mean", s.pool_use_mean},
                {"max", s.pool_use_max},
                {"mean_with_cached", s.pool_full_mean}}},
              {"running_mean", s.running_mean},
              {"waiting_mean", s.waiting_mean},
              {"groups_out",
               {{"mean", s.groups_out_mean}, {"max", s.groups_out_max}, {"end", s.groups_out_end}}},
              {"boundary_moves", s.boundary_moves},
              {"boundary_over_time", boundary_json(run)},
              {"staged_bytes", s.staged_bytes},
              {"activated_bytes", s.activated_bytes},
              {"staging_stall_s", s.staging_stall_s},
              {"demoted_bytes", s.demoted_bytes},
              {"promoted_bytes", s.promoted_bytes},
              {"experts_per_layer_mean", s.experts_per_layer_mean},
              {"steps", s.steps},
              {"failed_steps", s.failed_steps},
              {"decisions", actions_json(s)},
              {"slo", slo_json(s.slo)},
              {"memory", memory_json(run.memory)},
              {"settings", pairs_json(run.settings)}};
  if (!run.from_client) return out;
  for (const char* name : kEngineFigures) out[name] = nullptr;
  return out;
}

// Three significant digits after the point are plenty to draw with.
Json rounded(const std::vector<double>& values) {
  Json out = Json::array();
  for (const double v : values) {
    if (!std::isfinite(v)) {
      out.push_back(nullptr);
    } else if (std::fabs(v) >= 1000) {
      out.push_back(std::llround(v));
    } else {
      const double unit = std::fabs(v) >= 10 ? 1e2 : 1e4;
      out.push_back(std::round(v * unit) / unit);
    }
  }
  return out;
}

Json prices_json(const RunSeries& series) {
  Json out = Json::array();
  for (size_t k = 0; k < series.prices.size(); ++k) {
    const ActionPrices& price = series.prices[k];
    if (price.considered == 0 && price.chosen == 0) continue;
    out.push_back({{"action", action_name(static_cast<ActionKind>(k))},
                   {"chosen", price.chosen},
                   {"considered", price.considered},
                   {"chosen_p50_us", price.chosen_p50},
                   {"runner_up_p50_us", price.runner_up_p50},
                   {"refused_p50_us", price.refused_p50},
                   {"over_time", series.decisions[k]}});
  }
  return out;
}

Json series_json(const RunSeries& series) {
  Json out = {{"time_s", rounded(series.time_s)}};
  for (const Line& line : series.lines) out[line.name] = rounded(line.values);
  std::vector<double> arrival, ttft;
  for (const TurnPoint& point : series.ttft) {
    arrival.push_back(point.arrival_s);
    ttft.push_back(point.ttft_s);
  }
  out["turn_arrival_s"] = rounded(arrival);
  out["turn_ttft_s"] = rounded(ttft);
  out["ttft_quantiles_s"] = rounded(series.ttft_quantiles_s);
  out["bins"] = Json::array();
  for (const TurnBin& bin : series.bins) {
    out["bins"].push_back({{"first", bin.first_turn},
                           {"last", bin.last_turn},
                           {"turns", bin.turns},
                           {"ttft_p90_s", bin.ttft_p90_s}});
  }
  out["by_turn"] = Json::array();
  for (const TurnMedian& turn : series.by_turn) {
    out["by_turn"].push_back({turn.turn, turn.sessions, turn.ttft_p50_s});
  }
  out["experts_by_tokens"] = Json::array();
  for (const ExpertsByTokens& point : series.experts) {
    out["experts_by_tokens"].push_back({point.tokens, point.steps, point.experts_per_layer});
  }
  out["experts_time_s"] = rounded(series.experts_by_layer.time_s);
  out["experts_by_layer"] = Json::array();
  for (const auto& layer : series.experts_by_layer.mean)
    out["experts_by_layer"].push_back(rounded(layer));
  out["decision_time_s"] = rounded(series.decision_time_s);
  out["prices"] = prices_json(series);
  return out;
}

Json report_json(const ReportRecord& report) {
  return {{"title", report.title},
          {"settings", pairs_json(report.settings)},
          {"notes", report.notes},
          {"answers",
           {{"compared", report.answers.compared},
            {"identical", report.answers.identical},
            {"first_difference", report.answers.first_difference}}},
          {"runs", Json::array()}};
}

}  // namespace

nlohmann::ordered_json results_json(const ReportRecord& report) {
  Json out = report_json(report);
  for (const RunRecord& run : report.runs) out["runs"].push_back(run_json(run, summarize(run)));
  return out;
}

nlohmann::ordered_json page_json(const ReportRecord& report, const SeriesOptions& options) {
  Json out = results_json(report);
  for (size_t r = 0; r < report.runs.size(); ++r) {
    Json& run = out["runs"][r];
    run.erase("boundary_over_time");  // drawn from the series
    run["series"] = series_json(make_series(report.runs[r], options));
  }
  return out;
}

}  // namespace vamp
