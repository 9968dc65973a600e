#include "report/database.h"

#include <sqlite3.h>

#include <memory>
#include <string_view>

#include "base/error.h"
#include "report/results_json.h"

namespace vamp {
namespace {

constexpr const char* kSchema = R"(
CREATE TABLE runs(run INTEGER PRIMARY KEY, policy TEXT, summary TEXT);
CREATE TABLE turns(run INTEGER, session INTEGER, session_name TEXT, turn INTEGER, request INTEGER,
  think_s REAL, arrival_s REAL, first_scheduled_s REAL, first_token_s REAL, finished_s REAL, ttft_s REAL,
  tpot_s REAL, queued_s REAL, prompt_tokens INTEGER, cached_tokens INTEGER, host_cached_tokens INTEGER,
  output_tokens INTEGER, preemptions INTEGER, reason TEXT, error TEXT, in_window INTEGER);
CREATE TABLE steps(run INTEGER, step INTEGER, planned_s REAL, start_s REAL, end_s REAL, executed INTEGER,
  requests INTEGER, prefill_tokens INTEGER, decode_tokens INTEGER, running INTEGER, waiting INTEGER,
  free_blocks INTEGER, cached_blocks INTEGER, referenced_blocks INTEGER, total_blocks INTEGER,
  host_used_blocks INTEGER, groups_out INTEGER, bank_groups INTEGER, preemptions INTEGER,
  staged_bytes INTEGER, activated_bytes INTEGER, stall_us REAL, boundary_us REAL, demoted_bytes INTEGER,
  promoted_bytes INTEGER, demote_us REAL, promote_us REAL, experts_per_layer REAL,
  experts_by_layer TEXT);
CREATE TABLE decisions(run INTEGER, decision INTEGER, step INTEGER, time_s REAL, request INTEGER,
  admission INTEGER, gap_blocks INTEGER, needed_blocks INTEGER, free_blocks INTEGER, cached_blocks INTEGER,
  total_blocks INTEGER, host_free_blocks INTEGER, groups_out INTEGER, running INTEGER, waiting INTEGER,
  hit_rate REAL, action TEXT, cost_us REAL, costs TEXT, drop_blocks INTEGER, demote_segments INTEGER,
  give_up_groups INTEGER, preempted INTEGER, blocks_won INTEGER, repeats INTEGER, until_s REAL, reused_tokens INTEGER, first_reuse_s REAL,
  note TEXT);
)";

class Database {
 public:
  explicit Database(const std::string& path) : path_(path) {
    sqlite3* handle = nullptr;
    const int code = sqlite3_open(path.c_str(), &handle);
    handle_.reset(handle);
    check(code);
  }
  void run(const char* sql) { check(sqlite3_exec(handle_.get(), sql, nullptr, nullptr, nullptr)); }
  void check(int code) {
    if (code == SQLITE_OK || code == SQLITE_DONE) return;
    throw Error("cannot write the database {}: {}; make room or choose another --output", path_,
                handle_ ? sqlite3_errmsg(handle_.get()) : "out of memory");
  }
  sqlite3* handle() { return handle_.get(); }

 private:
  std::string path_;
  std::unique_ptr<sqlite3, int (*)(sqlite3*)> handle_{nullptr, &sqlite3_close};
};

// INSERT INTO table VALUES (?, ...), a row a call; values in the schema's order.
class Insert {
 public:
  Insert(Database& database, const std::string& table, int columns) : database_(database) {
    std::string sql = "INSERT INTO " + table + " VALUES (?";
    for (int i = 1; i < columns; ++i) sql += ",?";
    sqlite3_stmt* statement = nullptr;
    database_.check(
        sqlite3_prepare_v2(database.handle(), (sql + ")").c_str(), -1, &statement, nullptr));
    statement_.reset(statement);
  }
  template <typename... Values>
  void operator()(const Values&... values) {
    int column = 0;
    (bind(++column, values), ...);
    database_.check(sqlite3_step(statement_.get()));
    sqlite3_reset(statement_.get());
  }

 private:
  template <typename T>
  void bind(int column, const T& value) {
    if constexpr (std::is_floating_point_v<T>) {
      database_.check(std::isfinite(value) ? sqlite3_bind_double(statement_.get(), column,
                                                                 static_cast<double>(value))
                                           : sqlite3_bind_null(statement_.get(), column));
    } else if constexpr (std::is_arithmetic_v<T>) {
      database_.check(
          sqlite3_bind_int64(statement_.get(), column, static_cast<sqlite3_int64>(value)));
    } else {
      const std::string_view text(value);
      database_.check(sqlite3_bind_text(statement_.get(), column, text.data(),
                                        static_cast<int>(text.size()), SQLITE_TRANSIENT));
    }
  }
  Database& database_;
  std::unique_ptr<sqlite3_stmt, int (*)(sqlite3_stmt*)> statement_{nullptr, &sqlite3_finalize};
};

void write_turns(Database& database, int id, const RunRecord& run) {
  Insert insert(database, "turns", 21);
  for (const TurnRecord& turn : run.turns) {
    const RequestStats& s = turn.stats;
    const bool ok = turn.answered();
    insert(id, turn.session, turn.session_name, turn.turn, s.id, turn.think / kSecond,
           s.arrival / kSecond, s.first_scheduled / kSecond, ok ? s.first_token / kSecond : NAN,
           s.finished / kSecond, ok ? turn.ttft() / kSecond : NAN, ok ? turn.tpot() / kSecond : NAN,
           s.queued / kSecond, s.prompt_tokens, run.cached_known ? s.cached_tokens : NAN,
           run.from_client ? NAN : s.host_cached_tokens, s.output_tokens,
           run.from_client ? NAN : s.preemptions, finish_reason_name(s.reason), turn.error,
           in_window(run, turn));
  }
}

void write_steps(Database& database, int id, const RunRecord& run) {
  Insert insert(database, "steps", 29);
  for (const StepStats& s : run.steps) {
    const SchedulerStats& n = s.scheduler;
    insert(id, s.step, s.planned / kSecond, s.start / kSecond, s.end / kSecond, s.executed,
           s.requests, s.prefill_tokens, s.decode_tokens, n.running, n.waiting, n.free_blocks,
           n.cached_blocks, n.referenced_blocks, n.total_blocks, n.host_used_blocks, n.groups_out,
           s.bank_groups, n.preemptions, s.staging.staged_bytes, s.staging.activated_bytes,
           s.staging.stall, s.boundary_us, s.demoted_bytes, s.promoted_bytes, s.demote_us,
           s.promote_us, s.experts_per_layer, nlohmann::json(s.experts_by_layer).dump());
  }
}

std::string costs_text(const DecisionRow& decision) {
  nlohmann::ordered_json costs = nlohmann::ordered_json::object();
  for (size_t k = 0; k < decision.costs.size(); ++k) {
    const double cost = decision.costs[k];
    if (std::isnan(cost)) continue;
    auto& value = costs[action_name(static_cast<ActionKind>(k))];
    if (std::isfinite(cost)) {
      value = cost;
    } else {
      value = "infeasible";
    }
  }
  return costs.dump();
}

void write_decisions(Database& database, int id, const RunRecord& run) {
  Insert insert(database, "decisions", 29);
  for (const DecisionRow& d : run.decisions) {
    insert(id, d.id, d.step, d.time / kSecond, d.request, d.admission, d.gap_blocks,
           d.needed_blocks, d.free_blocks, d.cached_blocks, d.total_blocks, d.host_free_blocks,
           d.groups_out, d.running, d.waiting, d.hit_rate, action_name(d.kind),
           d.costs.at(static_cast<size_t>(d.kind)), costs_text(d), d.drop_blocks, d.demote_segments,
           d.give_up_groups, d.preempted, d.blocks_won, d.repeats, d.until / kSecond,
           d.reused_tokens, d.first_reuse < 0 ? NAN : d.first_reuse / kSecond, d.note);
  }
}

}  // namespace

void write_database(const std::string& path, const ReportRecord& report) {
  Database database(path);
  // The file gets its name only when it is whole: no journal, one flush at the end.
  database.run("PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; BEGIN");
  database.run(kSchema);
  const nlohmann::ordered_json results = results_json(report);
  {
    Insert insert(database, "runs", 3);
    for (size_t r = 0; r < report.runs.size(); ++r) {
      insert(static_cast<int>(r), report.runs[r].policy, results["runs"][r].dump());
    }
  }
  for (size_t r = 0; r < report.runs.size(); ++r) {
    write_turns(database, static_cast<int>(r), report.runs[r]);
    write_steps(database, static_cast<int>(r), report.runs[r]);
    write_decisions(database, static_cast<int>(r), report.runs[r]);
  }
  database.run("COMMIT");
}

}  // namespace vamp
