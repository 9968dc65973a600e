#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "base/random.h"
#include "report/metrics.h"
#include "report/page.h"
#include "report/results_json.h"
#include "report/series.h"
#include "report/table.h"

namespace vamp {
namespace {

using testing::HasSubstr;

TurnRecord make_turn(int session, int turn, double arrival_s, double ttft_s, double tpot_s,
                     int output) {
  TurnRecord record;
  record.session = session;
  record.turn = turn;
  record.session_name = fmt::format("s{}", session);
  RequestStats& stats = record.stats;
  stats.arrival = arrival_s * kSecond;
  stats.first_scheduled = stats.arrival;
  stats.first_token = (arrival_s + ttft_s) * kSecond;
  stats.finished = stats.first_token + (output - 1) * tpot_s * kSecond;
  stats.output_tokens = output;
  stats.prompt_tokens = 100;
  stats.cached_tokens = turn == 0 ? 0 : 80;
  return record;
}

// Two sessions of two turns, and two steps: small enough to work out by hand.
RunRecord small_run() {
  RunRecord run;
  run.policy = "static";
  run.window = {0, 9 * kSecond, "all", ""};
  run.planned_turns = 4;
  run.planned_sessions = 2;
  run.duration = 10 * kSecond;
  run.turns = {make_turn(0, 0, 0, 1, 0.1, 11), make_turn(1, 0, 0, 3, 0.2, 11),
               make_turn(0, 1, 4, 2, 0.1, 1), make_turn(1, 1, 9.5, 9, 0.1, 11)};
  run.turns[1].stats.preemptions = 1;
  StepStats step;
  step.executed = true;
  step.experts_by_layer = {2, 4, 8};
  step.scheduler.total_blocks = 10;
  step.scheduler.referenced_blocks = 10;
  step.end = 2 * kSecond;
  run.steps.push_back(step);
  step.step = 1;
  step.end = 6 * kSecond;
  step.scheduler.referenced_blocks = 5;
  step.scheduler.groups_out = 4;
  step.staging.staged_bytes = 1000;
  step.experts_by_layer = {6, 4, 8};
  run.steps.push_back(step);
  DecisionRow decision;
  decision.costs.fill(NAN);
  decision.costs[0] = 100;
  decision.costs[2] = 300;
  decision.kind = ActionKind::kDrop;
  decision.reused_tokens = 7;
  run.decisions.push_back(decision);
  return run;
}

ReportRecord small_report() {
  ReportRecord report;
  report.title = "a </script><b> model";
  report.settings = {{"sessions", "2"}};
  report.runs = {small_run(), small_run()};
  report.runs[1].policy = "priced";
  report.notes = {"4 of 4 answers are identical"};
  return report;
}

TEST(Metrics, QuantilesInterpolate) {
  const Distribution d = distribution({4, 1, 3, 2});
  EXPECT_EQ(d.mean, 2.5);
  EXPECT_EQ(d.p50, 2.5);
  EXPECT_NEAR(d.p90, 3.7, 1e-12);
  EXPECT_TRUE(std::isnan(distribution({}).p50));
}

TEST(Metrics, OnlyRequestsThatArriveInTheWindowCount) {
  const RunSummary s = summarize(small_run());
  EXPECT_EQ(s.turns, 4);
  EXPECT_EQ(s.window_turns, 3);  // the last arrives at 9.5 s
  EXPECT_EQ(s.ttft_s.mean, 2);
  EXPECT_NEAR(s.tpot_s.mean, 0.4 / 3, 1e-9);  // of the whole run, where there is a second token
  EXPECT_NEAR(s.requests_per_s, 3 / 9.0, 1e-12);
  EXPECT_NEAR(s.output_tokens_per_s, 23 / 9.0, 1e-12);
  EXPECT_NEAR(s.prefix_hit_rate, 80 / 300.0, 1e-12);
  EXPECT_NEAR(s.prefix_hit_rate_warm, 0.8, 1e-12);
  EXPECT_NEAR(s.preemptions_per_1000_turns, 1000 / 3.0, 1e-9);
  EXPECT_NEAR(s.pool_use_mean, (1.0 * 4 + 0.5 * 4) / 8, 1e-12);
  EXPECT_EQ(s.groups_out_max, 4);
  EXPECT_EQ(s.staged_bytes, 1000);
}

TEST(Metrics, FirstTurnsMayBeLeftOut) {
  RunRecord run = small_run();
  run.count_first_turns = false;
  EXPECT_EQ(summarize(run).window_turns, 1);
}

TEST(Metrics, SloGridCountsBothLimits) {
  const SloGrid slo = summarize(small_run()).slo;
  const auto at = [&](double ttft, double tpot) {
    const size_t t = static_cast<size_t>(
        std::find(kSloTtftSeconds.begin(), kSloTtftSeconds.end(), ttft) - kSloTtftSeconds.begin());
    const size_t p = static_cast<size_t>(
        std::find(kSloTpotMillis.begin(), kSloTpotMillis.end(), tpot) - kSloTpotMillis.begin());
    return slo[t][p] * 9;
  };
  EXPECT_NEAR(at(1, 75), 0, 1e-9);
  EXPECT_NEAR(at(1, 150), 1, 1e-9);
  EXPECT_NEAR(at(2, 15), 1, 1e-9);  // one output token: no time per further token
  EXPECT_NEAR(at(5, 350), 3, 1e-9);
}

TEST(Series, GaugesHoldBetweenStepsAndTurnsAreBinned) {
  const RunSeries series = make_series(small_run(), {.buckets = 10, .decision_buckets = 5});
  ASSERT_EQ(series.time_s.size(), 10u);
  const auto line = [&](const std::string& name) {
    for (const Line& candidate : series.lines) {
      if (candidate.name == name) return candidate.values;
    }
    ADD_FAILURE() << name;
    return std::vector<double>();
  };
  EXPECT_EQ(line("groups_out")[5], 0);
  EXPECT_EQ(line("groups_out")[6], 4);
  EXPECT_EQ(line("staged_rate")[6], 1000);
  ASSERT_EQ(series.bins.size(), 2u);
  EXPECT_NEAR(series.bins[0].ttft_p90_s, 2.8, 1e-9);
  EXPECT_EQ(series.by_turn[1].sessions, 2);
  EXPECT_EQ(series.prices[0].chosen, 1);
  EXPECT_EQ(series.prices[0].runner_up_p50, 300);
  EXPECT_EQ(series.prices[2].refused_p50, 300);
  ASSERT_EQ(series.experts_by_layer.mean.size(), 3u);
  const std::vector<double>& first = series.experts_by_layer.mean[0];
  EXPECT_EQ(first[12], 2);  // 60 stretches of 10 s
  EXPECT_EQ(first[36], 6);
  EXPECT_TRUE(std::isnan(first[20]));
  EXPECT_EQ(series.experts_by_layer.mean[2][36], 8);
}

TEST(ResultsJson, HasTheKeysThatScriptsRead) {
  const auto run = results_json(small_report())["runs"][0];
  for (const char* key : {"ttft_s", "tpot_s", "queue_s"}) {
    for (const char* part : {"mean", "p50", "p90", "p99"})
      EXPECT_TRUE(run.at(key).at(part).is_number()) << key;
  }
  EXPECT_EQ(run["policy"], "static");
  for (const char* key : {"requests_per_s", "output_tokens_per_s", "prefix_hit_rate",
                          "prefix_hit_rate_warm", "preemptions_per_1000_turns"}) {
    EXPECT_TRUE(run.at(key).is_number()) << key;
  }
  EXPECT_EQ(run["boundary_over_time"].size(), 2u);
}

// A server's client: what it cannot know is null, not zero.
TEST(ResultsJson, ARunSeenByAClientTellsNothingOfTheEngine) {
  ReportRecord report = small_report();
  for (RunRecord& run : report.runs) {
    run.from_client = true;
    run.steps.clear();
    run.decisions.clear();
    for (TurnRecord& turn : run.turns) turn.stats.first_scheduled = turn.stats.queued = NAN;
  }
  report.runs[1].cached_known = false;
  const auto json = page_json(report, {});
  for (const auto& run : json["runs"]) {
    EXPECT_TRUE(run["ttft_s"]["p90"].is_number());
    EXPECT_TRUE(std::isnan(run["queue_s"]["mean"].get<double>()));
    for (const char* key : {"memory", "steps", "decisions", "groups_out", "staged_bytes"})
      EXPECT_TRUE(run.at(key).is_null()) << key;
    for (const char* line : {"running", "groups_out", "staged_rate", "host_kv"}) {
      for (const auto& value : run["series"].at(line)) EXPECT_TRUE(value.is_null()) << line;
    }
  }
  EXPECT_GT(json["runs"][0]["prefix_hit_rate"], 0);
  EXPECT_EQ(json["runs"][0]["series"]["hit_rate"][72], 0.8);  // the turns that come at 4 s
  EXPECT_TRUE(std::isnan(json["runs"][1]["prefix_hit_rate"].get<double>()));
  EXPECT_TRUE(json["runs"][1]["series"]["hit_rate"][72].is_null());
  EXPECT_THAT(results_table(report), testing::Not(HasSubstr("boundary")));
}

TEST(Page, NeedsNothingElseAndCannotBeBrokenByData) {
  const std::string page = render_page(small_report());
  EXPECT_EQ(page.find("@DATA@"), std::string::npos);
  EXPECT_THAT(page, HasSubstr("<title>a &lt;/script>&lt;b> model</title>"));
  EXPECT_THAT(page, HasSubstr("a <\\/script><b> model"));
  size_t urls = 0;
  for (size_t at = 0; (at = page.find("http", at)) != std::string::npos; ++at) ++urls;
  EXPECT_EQ(urls, 1u);  // the SVG namespace, which nobody fetches
}

TEST(Page, StaysSmallForALongRun) {
  ReportRecord report = small_report();
  Random random(1);
  RunRecord& run = report.runs[0];
  run.duration = 3600 * kSecond;
  for (int i = 0; i < 20000; ++i) {
    StepStats step = run.steps.back();
    step.end = 0.18 * i * kSecond;
    step.scheduler.groups_out = static_cast<int>(random.below(100));
    run.steps.push_back(step);
    run.turns.push_back(make_turn(i % 50, i / 50, 0.18 * i, random.uniform(), 0.01, 20));
  }
  EXPECT_LT(render_page(report).size(), 700000u);
}

class WriteReport : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::remove_all(folder_); }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }
  const std::string folder_ =
      std::filesystem::temp_directory_path() / fmt::format("vamp_report_test_{}", getpid());
};

TEST_F(WriteReport, WritesARowForEachTurnStepAndDecision) {
  write_report(folder_, small_report());
  EXPECT_EQ(files(), 3u);
  sqlite3* database = nullptr;
  ASSERT_EQ(sqlite3_open((folder_ + "/results.sqlite").c_str(), &database), SQLITE_OK);
  std::string counts;
  sqlite3_exec(
      database,
      "SELECT (SELECT count(*) FROM runs), (SELECT count(*) FROM turns), (SELECT count(*) FROM "
      "steps), "
      "(SELECT count(*) FROM decisions WHERE cost_us = 100), "
      "(SELECT sum(json_extract(experts_by_layer, '$[1]')) FROM steps)",
      [](void* out, int n, char** values, char**) {
        for (int i = 0; i < n; ++i) *static_cast<std::string*>(out) += std::string(values[i]) + " ";
        return 0;
      },
      &counts, nullptr);
  sqlite3_close(database);
  EXPECT_EQ(counts, "2 8 4 2 16 ");
}

// A file size limit stands for a full disk: writes fail in the middle.
TEST_F(WriteReport, AFullDiskGivesOneLineAndLeavesNothing) {
  std::filesystem::create_directories(folder_);
  std::ofstream(folder_ + "/results.json") << "of an earlier run";
  const ReportRecord report = small_report();
  for (const rlim_t limit : {rlim_t{100}, rlim_t{9000}, rlim_t{40000}}) {
    struct rlimit before {};
    getrlimit(RLIMIT_FSIZE, &before);
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    const struct rlimit small { limit, before.rlim_max };
    setrlimit(RLIMIT_FSIZE, &small);
    std::string message;
    try {
      write_report(folder_, report);
    } catch (const Error& error) {
      message = error.what();
    }
    setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    EXPECT_THAT(message, HasSubstr("cannot write")) << limit;
    EXPECT_EQ(message.find('\n'), std::string::npos);
    EXPECT_EQ(files(), 1u) << limit;
    std::string text;
    std::ifstream(folder_ + "/results.json") >> text;
    EXPECT_EQ(text, "of");
  }
}

TEST_F(WriteReport, LeavesNoFolderBehindThatItMade) {
  std::filesystem::create_directories(folder_);
  struct rlimit before {};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small { 100, before.rlim_max };
  setrlimit(RLIMIT_FSIZE, &small);
  EXPECT_THROW(write_report(folder_ + "/not/there", small_report()), Error);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(WriteReport, AFolderInTheWayLeavesTheOtherFilesAsTheyWere) {
  std::filesystem::create_directories(folder_ + "/report.html");
  std::ofstream(folder_ + "/results.json") << "of an earlier run";
  EXPECT_THROW(write_report(folder_, small_report()), Error);
  std::string text;
  std::ifstream(folder_ + "/results.json") >> text;
  EXPECT_EQ(text, "of");
  EXPECT_EQ(files(), 2u);
}

TEST(Table, OneColumnAPolicy) {
  const std::string table = results_table(small_report());
  EXPECT_THAT(table, HasSubstr("static"));
  EXPECT_THAT(table, HasSubstr("priced"));
  EXPECT_THAT(table, HasSubstr("4 of 4 answers are identical"));
}

}  // namespace
}  // namespace vamp
