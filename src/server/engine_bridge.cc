#include "server/engine_bridge.h"

#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>

namespace vamp {

EngineBridge::~EngineBridge() {
  stop();
}

void EngineBridge::start(EngineParts parts, std::vector<EngineListener*> listeners) {
  parts_ = std::move(parts);
  fanout_.add(*this);
  for (EngineListener* listener : listeners) fanout_.add(*listener);
  engine_ = std::make_unique<Engine>(parts_.config, *parts_.layout, std::move(parts_.policy),
                                     *parts_.executor, *parts_.clock, fanout_);
  last_progress_ = parts_.clock->now();
  thread_ = std::thread([this] { run(); });
}

void EngineBridge::run() {
  std::string reason;
  try {
    engine_->run();
    return;
  } catch (const std::bad_alloc&) {
    reason = "out of memory";
  } catch (const std::exception& error) {
    reason = error.what();
  }
  spdlog::critical("the engine has stopped: {}", reason);
  fail_all("the engine has stopped: " + reason, /*for_good=*/true);
}

void EngineBridge::stop() {
  if (engine_) engine_->stop();
  if (thread_.joinable()) thread_.join();
}

size_t EngineBridge::lane_of(const boost::asio::any_io_executor& executor) {
  size_t lane = 0;
  while (lane < lanes_.size() && lanes_[lane].executor != executor) ++lane;
  if (lane == lanes_.size()) lanes_.push_back({executor, {}});
  return lane;
}

EngineBridge::Submitted EngineBridge::submit(RequestInput& input,
                                             const std::shared_ptr<EventQueue>& queue,
                                             const boost::asio::any_io_executor& executor,
                                             int max_waiting) {
  input.arrival = now();
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return Submitted::kFailed;
  const int waiting = static_cast<int>(subscribers_.size()) - running_;
  if (max_waiting > 0 && waiting >= max_waiting) return Submitted::kQueueFull;
  if (subscribers_.empty()) last_progress_ = input.arrival;
  input.id = next_id_++;
  subscribers_.emplace(input.id, Subscriber{queue, lane_of(executor)});
  if (engine_->submit(std::move(input))) return Submitted::kYes;
  subscribers_.erase(next_id_ - 1);
  return Submitted::kQueueFull;
}

void EngineBridge::cancel(RequestId id, FinishReason reason) {
  const std::lock_guard lock(mutex_);
  if (subscribers_.erase(id) == 0) return;
  cancelled_.emplace(id, reason);
  if (!engine_->cancel(id)) unsent_cancels_.push_back(id);
}

bool EngineBridge::reset_prefix_cache() {
  return failure().empty() && engine_ && engine_->reset_prefix_cache();
}

void EngineBridge::fail_all(const std::string& reason, bool for_good) {
  const std::lock_guard lock(mutex_);
  if (for_good && failure_.empty()) failure_ = reason;
  for (auto& [id, subscriber] : subscribers_) {
    EngineEvent event;
    event.id = id;
    event.finished = true;
    event.reason = FinishReason::kError;
    event.error = reason;
    event.stats.id = id;
    lanes_[subscriber.lane].pending.emplace_back(subscriber.queue, std::move(event));
    if (engine_ && !engine_->cancel(id)) unsent_cancels_.push_back(id);
  }
  subscribers_.clear();
  post_pending();
}

std::string EngineBridge::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

bool EngineBridge::stalled(Micros time) const {
  return requests() > 0 && now() - last_progress_ > time;
}

int EngineBridge::requests() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int>(subscribers_.size());
}

void EngineBridge::add_token(const RequestEvent& event, bool prompt) {
  const std::lock_guard lock(mutex_);
  const auto found = subscribers_.find(event.id);
  if (found == subscribers_.end()) return;  // cancelled
  EngineEvent out;
  out.id = event.id;
  out.prompt = prompt;
  out.token = event.token;
  out.logprob = event.logprob;
  out.top_logprobs = event.top_logprobs;
  lanes_[found->second.lane].pending.emplace_back(found->second.queue, std::move(out));
}

void EngineBridge::on_finished(const RequestEvent& event, const RequestStats& stats) {
  const std::lock_guard lock(mutex_);
  EngineEvent out;
  out.id = event.id;
  out.finished = true;
  if (const auto gone = cancelled_.find(event.id); gone != cancelled_.end()) {
    out.reason = gone->second;
    out.stats = stats;
    lanes_.front().pending.emplace_back(nullptr, std::move(out));
    cancelled_.erase(gone);
    return;
  }
  const auto found = subscribers_.find(event.id);
  if (found == subscribers_.end()) return;
  out.reason = event.reason;
  out.error = event.error;
  out.refused = event.reason == FinishReason::kError && stats.first_scheduled <= 0;
  out.stats = stats;
  lanes_[found->second.lane].pending.emplace_back(found->second.queue, std::move(out));
  subscribers_.erase(found);
}

void EngineBridge::on_step(const StepStats& stats) {
  last_progress_ = stats.end;
  const std::lock_guard lock(mutex_);
  running_ = stats.scheduler.running;
  steps_.push_back(stats);
}

void EngineBridge::on_decision(const DecisionRecord& record) {
  metrics_.observe_decision(record);
}

void EngineBridge::on_delivered() {
  const std::lock_guard lock(mutex_);
  while (!unsent_cancels_.empty() && engine_->cancel(unsent_cancels_.back()))
    unsent_cancels_.pop_back();
  post_pending();
}

void EngineBridge::post_pending() {
  const Micros time = now();
  for (Lane& lane : lanes_) {
    if (lane.pending.empty()) continue;
    boost::asio::post(lane.executor, [this, batch = std::exchange(lane.pending, {}),
                                      time]() mutable { deliver(std::move(batch), time); });
  }
  if (steps_.empty() || lanes_.empty()) return;
  boost::asio::post(lanes_.front().executor, [this, steps = std::exchange(steps_, {})] {
    for (const StepStats& step : steps) metrics_.observe_step(step);
  });
}

// On an io thread.
void EngineBridge::deliver(std::vector<std::pair<std::shared_ptr<EventQueue>, EngineEvent>> batch,
                           Micros time) {
  std::vector<std::shared_ptr<EventQueue>> woken;
  for (auto& [queue, event] : batch) {
    if (event.finished) {
      metrics_.observe_request(event.stats, event.reason);
    } else if (!event.prompt) {
      if (queue->last_token > 0) metrics_.observe_token_gap(time - queue->last_token);
      queue->last_token = time;
    }
    if (!queue) continue;  // nobody waits for it
    queue->events.push_back(std::move(event));
    if (!std::exchange(queue->signalled, true)) woken.push_back(queue);
  }
  for (const auto& queue : woken) {
    queue->signalled = false;
    queue->wake();
  }
}

}  // namespace vamp
