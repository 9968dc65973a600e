#include "replay/replay_driver.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"

namespace vamp {
namespace {
constexpr Micros kLongestNap = 0.1 * kSecond;  // so that an interrupt is seen while nothing is due

uint64_t own_stream(uint64_t seed, size_t session) {
  return Random(seed).next() ^ Random(session + 1).next();
}
}  // namespace

ReplayDriver::ReplayDriver(const Trace& trace, const PromptBuilder& prompts,
                           const ReplayOptions& options)
    : trace_(trace), prompts_(prompts), options_(options), sessions_(trace.sessions.size()) {
  result_.record.planned_turns = static_cast<int>(trace.num_turns());
  result_.record.planned_sessions = static_cast<int>(trace.sessions.size());
  result_.record.count_first_turns = options.count_first_turns;
  for (size_t s = 0; s < sessions_.size(); ++s) {
    // A stream of its own: think times are the same in every run, whatever order turns end in.
    sessions_[s].random = Random(own_stream(options.seed, s));
    result_.answers.emplace_back(trace.sessions[s].turns.size());
  }
}

ReplayResult ReplayDriver::run(ReplayTarget& target, Clock& clock) {
  clock_ = &clock;
  start_ = clock.now();
  RunRecord& record = result_.record;
  start_sessions();
  while (!due_.empty() || !running_.empty()) {
    const Micros now = clock.now() - start_;
    result_.interrupted = stop_requested && stop_requested();
    if (result_.interrupted || now >= options_.max_duration) {
      record.cut = fmt::format("{} after {:.0f} s: {} of {} turns had ended",
                               result_.interrupted ? "interrupted" : "cut", now / kSecond,
                               record.turns.size(), record.planned_turns);
      cancel_all(target);
      break;
    }
    send_due_turns(target);
    if (!target.step()) {
      if (due_.empty() && running_.empty()) break;  // the last turns were refused at the door
      Micros until = start_ + options_.max_duration;
      if (!due_.empty()) until = std::min(until, start_ + due_.top().time);
      if (!clock.jumps()) until = std::min(until, clock.now() + kLongestNap);
      target.wait(until);
    }
    report_progress();
  }
  record.duration = clock.now() - start_;
  std::vector<SessionTimes> times;
  for (const Session& session : sessions_) times.push_back({session.started, session.ended});
  record.window = make_window(options_.window, record, times, options_.sessions);
  return std::move(result_);
}

void ReplayDriver::start_sessions() {
  if (options_.sessions > 0) {
    const size_t slots = std::min(static_cast<size_t>(options_.sessions), sessions_.size());
    for (size_t slot = 0; slot < slots; ++slot)
      start_next_session(static_cast<double>(slot) * options_.stagger);
    return;
  }
  for (size_t s = 0; s < sessions_.size(); ++s) {
    const Micros recorded =
        trace_.sessions[s].turns.front().not_before.value_or(0) * options_.think_scale;
    start_next_session(recorded + static_cast<double>(s) * options_.stagger);
  }
}

void ReplayDriver::start_next_session(Micros time) {
  if (next_session_ < sessions_.size()) due_.push({time, next_session_++});
}

void ReplayDriver::send_due_turns(ReplayTarget& target) {
  while (!due_.empty() && start_ + due_.top().time <= clock_->now()) {
    const Due due = due_.top();
    due_.pop();
    send_turn(target, due);
  }
}

void ReplayDriver::send_turn(ReplayTarget& target, const Due& due) {
  Session& session = sessions_[due.session];
  if (session.started < 0) session.started = due.time;
  session.prompt = prompts_.build(due.session, session.next_turn, session.prompt, session.answer);
  session.answer.clear();
  RequestInput request;
  request.id = next_request_++;
  request.prompt = session.prompt;
  request.sampling.max_tokens = prompts_.output_tokens(due.session, session.next_turn);
  request.sampling.ignore_eos = options_.ignore_eos;
  if (options_.ignore_eos) request.sampling.min_tokens = request.sampling.max_tokens;
  request.reuse.session = due.session + 1;
  request.arrival = start_ + due.time;  // when it was due, not when the loop got round to it
  running_[request.id] = due.session;
  target.submit(std::move(request));
}

void ReplayDriver::on_token(const RequestEvent& event) {
  const auto found = running_.find(event.id);
  if (found != running_.end()) sessions_[found->second].answer.push_back(event.token);
}

void ReplayDriver::on_finished(const RequestEvent& event, const RequestStats& stats) {
  const auto found = running_.find(event.id);
  if (found == running_.end()) return;
  const size_t index = found->second;
  running_.erase(found);
  if (ending_) return;
  Session& session = sessions_[index];
  TurnRecord turn;
  turn.session = static_cast<int>(index);
  turn.turn = static_cast<int>(session.next_turn);
  turn.session_name = trace_.sessions[index].name;
  turn.think = session.think;
  turn.stats = stats;
  for (Micros* time : {&turn.stats.arrival, &turn.stats.first_scheduled, &turn.stats.first_token,
                       &turn.stats.finished}) {
    *time -= start_;
  }
  const bool answered =
      event.reason == FinishReason::kStop || event.reason == FinishReason::kLength;
  if (!answered) turn.error = event.error.empty() ? finish_reason_name(event.reason) : event.error;
  if (answered) result_.answers[index][session.next_turn] = session.answer;
  result_.record.turns.push_back(turn);
  end_turn(index, turn.stats.finished, answered);
}

// A session whose turn failed ends there: what follows rests on the answer.
void ReplayDriver::end_turn(size_t index, Micros time, bool answered) {
  Session& session = sessions_[index];
  ++session.next_turn;
  if (answered && session.next_turn < trace_.sessions[index].turns.size()) {
    session.think = think_time(index);
    due_.push({time + session.think, index});
    return;
  }
  session.ended = time;
  session.prompt = {};
  if (options_.sessions > 0) start_next_session(time);
}

Micros ReplayDriver::think_time(size_t index) {
  Session& session = sessions_[index];
  const Micros recorded =
      trace_.sessions[index].turns[session.next_turn].think * options_.think_scale;
  const Micros think =
      options_.think_time >= 0 ? options_.think_time : std::min(recorded, options_.think_cap);
  return think * (1 + options_.think_jitter * (2 * session.random.uniform() - 1));
}

void ReplayDriver::on_step(const StepStats& stats) {
  last_step_ = stats;
  for (Micros* time : {&last_step_.planned, &last_step_.start, &last_step_.end}) *time -= start_;
  result_.record.steps.push_back(last_step_);
}

void ReplayDriver::on_decision(const DecisionRecord& record) {
  decision_rows_[record.id] = result_.record.decisions.size();
  result_.record.decisions.push_back(make_decision_row(record));
  DecisionRow& row = result_.record.decisions.back();
  row.time -= start_;
  row.until -= start_;
}

void ReplayDriver::on_decision_result(const DecisionRecord& record) {
  const auto found = decision_rows_.find(record.id);
  if (found == decision_rows_.end()) return;
  DecisionRow& row = result_.record.decisions[found->second];
  row.repeats = record.repeats;
  row.until = record.until - start_;
  row.reused_tokens = record.reused_tokens;
  if (record.first_reuse >= 0) row.first_reuse = record.first_reuse - start_;
}

// Leaves an engine with nothing in flight, so that its executor may go.
void ReplayDriver::cancel_all(ReplayTarget& target) {
  ending_ = true;
  for (const auto& [id, session] : running_) target.cancel(id);
  while (target.step()) {
  }
}

void ReplayDriver::report_progress() {
  if (!on_progress) return;
  on_progress({static_cast<int>(result_.record.turns.size()), result_.record.planned_turns,
               static_cast<int>(running_.size()), clock_->now() - start_, last_step_.scheduler});
}

AnswerComparison compare_answers(const std::vector<ReplayResult>& runs) {
  AnswerComparison out;
  if (runs.size() < 2) return out;
  const auto& first = runs.front().answers;
  for (size_t s = 0; s < first.size(); ++s) {
    for (size_t t = 0; t < first[s].size(); ++t) {
      const auto answered = [&](const ReplayResult& run) { return !run.answers[s][t].empty(); };
      if (!std::all_of(runs.begin(), runs.end(), answered)) continue;
      ++out.compared;
      const auto differs = std::find_if(runs.begin(), runs.end(), [&](const ReplayResult& run) {
        return run.answers[s][t] != first[s][t];
      });
      if (differs == runs.end()) {
        ++out.identical;
      } else if (out.first_difference.empty()) {
        out.first_difference =
            fmt::format("session {} turn {}: {} and {} answer differently", s + 1, t + 1,
                        runs.front().record.policy, differs->record.policy);
      }
    }
  }
  return out;
}

}  // namespace vamp
