// Drives a target with a trace: closed loop, the next turn of a session is sent when the last one
// has been answered and the think time is over.
#pragma once

#include <functional>
#include <limits>
#include <queue>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/random.h"
#include "engine/engine.h"
#include "replay/prompt_builder.h"
#include "replay/replay_target.h"
#include "replay/trace.h"
#include "replay/window.h"
#include "report/run_record.h"

namespace vamp {

struct ReplayOptions {
  // Sessions at once: a slot whose session ended takes the next one of the trace. 0: all of them,
  // each from its recorded start on.
  int sessions = 0;
  Micros stagger = 0;      // between the slots' starts
  double think_scale = 1;  // of recorded think times
  Micros think_cap = 60 * kSecond;
  Micros think_time = -1;   // instead of the recorded ones; below 0: recorded
  double think_jitter = 0;  // think times vary by this share, uniformly
  bool ignore_eos = true;   // answers have their recorded length
  Micros max_duration = std::numeric_limits<Micros>::infinity();  // then the run is cut
  WindowRule window;
  bool count_first_turns = true;
  uint64_t seed = 1;  // of think times
};

struct ReplayProgress {
  int turns_ended = 0, planned_turns = 0, running_turns = 0;
  Micros now = 0;
  SchedulerStats scheduler;
};

// One run's record, and the answers by session and turn (empty: not answered).
struct ReplayResult {
  RunRecord record;
  std::vector<std::vector<std::vector<TokenId>>> answers;
  bool interrupted = false;
};

// One run; not reusable. Listens to the target that it drives; one thread.
class ReplayDriver final : public EngineListener {
 public:
  // All references must outlive the driver.
  ReplayDriver(const Trace& trace, const PromptBuilder& prompts, const ReplayOptions& options);

  // Called between steps, as often as there are steps. `stop_requested` true ends the run and keeps
  // what was measured; what still runs then is cancelled and not counted.
  std::function<void(const ReplayProgress&)> on_progress;
  std::function<bool()> stop_requested;

  // Drives `target`, made with this driver as its listener and with `clock`. The record's times
  // count from now. What is not the driver's to know stays for the caller to fill in: the record's
  // name, settings and memory.
  ReplayResult run(ReplayTarget& target, Clock& clock);

  void on_token(const RequestEvent& event) override;
  void on_finished(const RequestEvent& event, const RequestStats& stats) override;
  void on_step(const StepStats& stats) override;
  void on_decision(const DecisionRecord& record) override;
  void on_decision_result(const DecisionRecord& record) override;

 private:
  struct Session {
    size_t next_turn = 0;
    Micros think = 0;  // before the next turn
    std::vector<TokenId> prompt, answer;
    Random random{0};
    Micros started = -1, ended = -1;
  };
  struct Due {
    Micros time = 0;
    size_t session = 0;
    bool operator>(const Due& other) const {
      return time != other.time ? time > other.time : session > other.session;
    }
  };

  void start_sessions();
  void start_next_session(Micros time);
  void send_due_turns(ReplayTarget& target);
  void send_turn(ReplayTarget& target, const Due& due);
  void end_turn(size_t session, Micros time, bool answered);
  Micros think_time(size_t session);
  void cancel_all(ReplayTarget& target);
  void report_progress();

  const Trace& trace_;
  const PromptBuilder& prompts_;
  const ReplayOptions options_;
  Clock* clock_ = nullptr;
  Micros start_ = 0;
  std::vector<Session> sessions_;
  size_t next_session_ = 0;
  std::priority_queue<Due, std::vector<Due>, std::greater<>> due_;
  std::unordered_map<RequestId, size_t> running_;  // → session
  RequestId next_request_ = 1;
  bool ending_ = false;
  StepStats last_step_;
  std::unordered_map<uint64_t, size_t> decision_rows_;
  ReplayResult result_;
};

// By turn, over the turns that every run answered.
AnswerComparison compare_answers(const std::vector<ReplayResult>& runs);

}  // namespace vamp
