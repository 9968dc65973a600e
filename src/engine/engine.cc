#include "engine/engine.h"

#include <algorithm>

namespace vamp {
namespace {
constexpr Micros kLongestNap = kSecond;
}

Engine::Engine(const EngineConfig& config, const MemoryLayout& layout,
               std::unique_ptr<ReclaimPolicy> policy, Executor& executor, Clock& clock,
               EngineListener& listener)
    : config_(config),
      layout_(layout),
      executor_(executor),
      clock_(clock),
      listener_(listener),
      inbox_(config.inbox_capacity),
      scheduler_(config.scheduler, layout, std::move(policy), scheduler_listener()) {}

bool Engine::step() {
  drain_inbox();
  StepPlan plan = scheduler_.schedule(clock_.now());
  const bool planned = !plan.empty();
  if (planned) submit_plan(std::move(plan));
  // The plan just handed out may run on; the one before it must be answered before the next is
  // made.
  const bool answered = executor_.in_flight() > (planned ? 1 : 0);
  if (answered) take_result();
  deliver_events();
  return planned || answered;
}

void Engine::run() {
  while (!stopping_) {
    if (step()) continue;
    if (config_.check_invariants_when_idle) check_invariants();
    const Micros nap = std::clamp(next_wakeup() - clock_.now(), 0.0, kLongestNap);
    inbox_.wait_for(std::chrono::microseconds(static_cast<int64_t>(nap)));
  }
  while (executor_.in_flight() > 0) take_result();
  deliver_events();
}

void Engine::stop() {
  stopping_ = true;
  inbox_.wake();
}

void Engine::drain_inbox() {
  for (Message& message : inbox_.drain()) {
    if (auto* request = std::get_if<RequestInput>(&message)) {
      take_in(std::move(*request));
    } else if (const auto* cancelled = std::get_if<Cancel>(&message)) {
      scheduler_.cancel(cancelled->id, clock_.now());
    } else {
      scheduler_.reset_prefix_cache();
    }
  }
}

void Engine::take_in(RequestInput request) {
  RequestStats stats;
  stats.id = request.id;
  stats.session = request.reuse.session;
  stats.prompt_tokens = static_cast<int>(request.prompt.size());
  stats.arrival = request.arrival;
  stats.finished = clock_.now();
  stats.reason = FinishReason::kError;
  const std::optional<std::string> refusal = scheduler_.add(std::move(request), clock_.now());
  if (!refusal) return;
  RequestEvent event;
  event.id = stats.id;
  event.kind = RequestEvent::Kind::kFinished;
  event.reason = FinishReason::kError;
  event.error = *refusal;
  listener_.on_finished(event, stats);
}

void Engine::submit_plan(StepPlan plan) {
  plan.staging = config_.staging;
  in_flight_.push_back(make_step_stats(plan, clock_.now()));
  executor_.submit(std::move(plan));
}

void Engine::take_result() {
  const StepResult result = executor_.wait();
  VAMP_CHECK(!in_flight_.empty() && in_flight_.front().step == result.step,
             "result of step {} is out of order", result.step);
  StepStats stats = in_flight_.front();
  in_flight_.pop_front();
  scheduler_.update(result, clock_.now());
  add_result(stats, result, scheduler_.stats(), layout_);
  listener_.on_step(stats);
}

void Engine::deliver_events() {
  for (const RequestEvent& event : scheduler_.take_events()) {
    if (event.kind == RequestEvent::Kind::kToken) {
      listener_.on_token(event);
      continue;
    }
    if (event.kind == RequestEvent::Kind::kPromptToken) {
      listener_.on_prompt_token(event);
      continue;
    }
    const auto found = finished_.find(event.id);
    VAMP_CHECK(found != finished_.end(), "request {} ended without its figures", event.id);
    listener_.on_finished(event, found->second);
    finished_.erase(found);
  }
  listener_.on_delivered();
}

SchedulerListener Engine::scheduler_listener() {
  SchedulerListener out;
  out.on_decision = [this](const DecisionRecord& record) { listener_.on_decision(record); };
  out.on_decision_result = [this](const DecisionRecord& record) {
    listener_.on_decision_result(record);
  };
  out.on_finished = [this](const RequestStats& stats) {
    finished_.insert_or_assign(stats.id, stats);
  };
  out.on_kv_events = [this](const std::vector<KvEvent>& events) { listener_.on_kv_events(events); };
  return out;
}

}  // namespace vamp
