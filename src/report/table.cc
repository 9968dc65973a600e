#include "report/table.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

#include "base/units.h"
#include "report/metrics.h"

namespace vamp {
namespace {

std::string number(double value, const char* format = "{:.2f}") {
  return std::isnan(value) ? "-" : fmt::format(fmt::runtime(format), value);
}
std::string percent(double value) {
  return std::isnan(value) ? "-" : fmt::format("{:.1f}%", 100 * value);
}
std::string millis(double seconds) {
  return number(seconds * 1e3, "{:.1f}");
}
std::string pair(double a, double b) {
  return number(a) + " / " + number(b);
}
std::string bytes(double value) {
  return value > 0 ? format_bytes(static_cast<size_t>(value)) : "0";
}

struct Figure {
  const char* name;
  std::function<std::string(const RunRecord&, const RunSummary&)> text;
  bool of_engine = false;  // a client does not see it
};

const std::vector<Figure>& figures() {
  static const std::vector<Figure> all = {
      {"turns answered",
       [](const RunRecord& r, const RunSummary& s) {
         return fmt::format("{} of {}{}", s.turns - s.failed_turns, r.planned_turns,
                            r.cut.empty() ? "" : " (cut)");
       }},
      {"time, s", [](const RunRecord& r,
                     const RunSummary&) { return number(r.duration / kSecond, "{:.1f}"); }},
      {"requests/s",
       [](const RunRecord&, const RunSummary& s) { return number(s.requests_per_s, "{:.3f}"); }},
      {"output tokens/s",
       [](const RunRecord&, const RunSummary& s) {
         return number(s.output_tokens_per_s, "{:.1f}");
       }},
      {"TTFT p50 / p90, s",
       [](const RunRecord&, const RunSummary& s) { return pair(s.ttft_s.p50, s.ttft_s.p90); }},
      {"TTFT mean / p99, s",
       [](const RunRecord&, const RunSummary& s) { return pair(s.ttft_s.mean, s.ttft_s.p99); }},
      {"TPOT mean, ms",
       [](const RunRecord&, const RunSummary& s) { return millis(s.tpot_s.mean); }},
      {"TPOT p50 / p99, ms",
       [](const RunRecord&, const RunSummary& s) {
         return millis(s.tpot_s.p50) + " / " + millis(s.tpot_s.p99);
       }},
      {"queue mean, s",
       [](const RunRecord&, const RunSummary& s) { return number(s.queue_s.mean); }, true},
      {"prefix hit rate",
       [](const RunRecord&, const RunSummary& s) { return percent(s.prefix_hit_rate); }},
      {"  without first turns",
       [](const RunRecord&, const RunSummary& s) { return percent(s.prefix_hit_rate_warm); }},
      {"  from host memory",
       [](const RunRecord&, const RunSummary& s) { return percent(s.host_hit_rate); }, true},
      {"preemptions/1,000 turns",
       [](const RunRecord&, const RunSummary& s) {
         return number(s.preemptions_per_1000_turns, "{:.1f}");
       },
       true},
      {"pool in use, mean",
       [](const RunRecord&, const RunSummary& s) { return percent(s.pool_use_mean); }, true},
      {"groups given up, max",
       [](const RunRecord& r, const RunSummary& s) {
         return fmt::format("{} of {}", s.groups_out_max, r.memory.total_groups);
       },
       true},
      {"boundary moves",
       [](const RunRecord&, const RunSummary& s) { return std::to_string(s.boundary_moves); },
       true},
      {"experts staged",
       [](const RunRecord&, const RunSummary& s) { return bytes(s.staged_bytes); }, true},
      {"KV to / from host",
       [](const RunRecord&, const RunSummary& s) {
         return bytes(s.demoted_bytes) + " / " + bytes(s.promoted_bytes);
       },
       true},
  };
  return all;
}

}  // namespace

std::string results_table(const ReportRecord& report) {
  std::vector<RunSummary> summaries;
  for (const RunRecord& run : report.runs) summaries.push_back(summarize(run));
  std::vector<std::vector<std::string>> lines = {{""}};
  for (const RunRecord& run : report.runs) lines[0].push_back(run.policy);
  const bool clients = !report.runs.empty() && report.runs.front().from_client;
  for (const Figure& figure : figures()) {
    if (clients && figure.of_engine) continue;
    lines.push_back({figure.name});
    for (size_t r = 0; r < summaries.size(); ++r)
      lines.back().push_back(figure.text(report.runs[r], summaries[r]));
  }
  std::vector<size_t> widths(lines[0].size(), 0);
  for (const auto& line : lines) {
    for (size_t c = 0; c < line.size(); ++c) widths[c] = std::max(widths[c], line[c].size());
  }
  std::string out;
  for (const auto& line : lines) {
    out += fmt::format("{:<{}}", line[0], widths[0]);
    for (size_t c = 1; c < line.size(); ++c) out += fmt::format("  {:>{}}", line[c], widths[c]);
    out += "\n";
  }
  for (const RunRecord& run : report.runs) {
    if (!run.cut.empty()) out += fmt::format("{}: {}\n", run.policy, run.cut);
    if (!run.window.note.empty()) out += fmt::format("{}: {}\n", run.policy, run.window.note);
  }
  for (const std::string& note : report.notes) out += note + "\n";
  return out;
}

}  // namespace vamp
