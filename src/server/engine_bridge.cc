#include "server/engine_bridge.h"

#include <spdlog/spdlog.h>

#include <boost/asio/post.hpp>

namespace vamp {
namespace {

constexpr auto kMemoryPause = std::chrono::milliseconds(10);

std::string fault_text(const std::exception_ptr& fault) {
  try {
    std::rethrow_exception(fault);
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

void EventQueue::push(EngineEvent event) noexcept {
  try {
    events.push_back(std::move(event));
    bytes += events.back().bytes();
  } catch (const std::bad_alloc&) {
    lost = true;
  }
}

std::vector<EngineEvent> EventQueue::take(size_t most) {
  std::vector<EngineEvent> out;
  if (events.size() <= most) {
    out.swap(events);
  } else {
    const auto end = events.begin() + static_cast<std::ptrdiff_t>(most);
    out.assign(std::make_move_iterator(events.begin()), std::make_move_iterator(end));
    events.erase(events.begin(), end);
  }
  for (const EngineEvent& event : out) bytes -= event.bytes();
  return out;
}

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
  std::exception_ptr fault;
  try {
    engine_->run();
    return;
  } catch (...) {
    fault = std::current_exception();
  }
  // Where memory is short, there may be enough a moment later; nobody must wait for ever.
  while (!tell(fault)) std::this_thread::sleep_for(kMemoryPause);
}

// False when there was no memory to do so.
bool EngineBridge::tell(const std::exception_ptr& fault) {
  try {
    const std::string reason = "the engine has stopped: " + fault_text(fault);
    spdlog::critical("{}", reason);
    fail(reason);
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
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
  const int waiting = static_cast<int>(subscribers_.size()) - cancelled_ - running_;
  if (max_waiting > 0 && waiting >= max_waiting) return Submitted::kQueueFull;
  if (subscribers_.empty()) last_progress_ = input.arrival;
  input.id = next_id_++;
  subscribers_.emplace(input.id, Subscriber{queue, lane_of(executor)});
  try {
    if (engine_->submit(std::move(input))) return Submitted::kYes;
  } catch (...) {
    subscribers_.erase(next_id_ - 1);
    throw;
  }
  subscribers_.erase(next_id_ - 1);
  return Submitted::kQueueFull;
}

// Takes no memory: destructors call it.
void EngineBridge::cancel(RequestId id, FinishReason reason) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = subscribers_.find(id);
  if (found == subscribers_.end() || found->second.cancelled) return;
  Subscriber& subscriber = found->second;
  subscriber.queue.reset();
  subscriber.cancelled = true;
  subscriber.cancelled_as = reason;
  subscriber.cancel_sent = send_cancel(id);
  unsent_cancels_ = unsent_cancels_ || !subscriber.cancel_sent;
  ++cancelled_;
}

bool EngineBridge::send_cancel(RequestId id) noexcept {
  try {
    return engine_->cancel(id);
  } catch (const std::bad_alloc&) {
    return false;
  }
}

bool EngineBridge::reset_prefix_cache() {
  return failure().empty() && engine_ && engine_->reset_prefix_cache();
}

void EngineBridge::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = reason;
  for (auto it = subscribers_.begin(); it != subscribers_.end(); it = subscribers_.erase(it)) {
    const auto& [id, subscriber] = *it;
    if (subscriber.cancelled) continue;
    EngineEvent event;
    event.id = id;
    event.finished = true;
    event.reason = FinishReason::kError;
    event.error = reason;
    event.stats.id = id;
    lanes_[subscriber.lane].pending.emplace_back(subscriber.queue, std::move(event));
    send_cancel(id);
  }
  cancelled_ = 0;
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
  return static_cast<int>(subscribers_.size()) - cancelled_;
}

void EngineBridge::add_token(const RequestEvent& event, bool prompt) {
  const std::lock_guard lock(mutex_);
  const auto found = subscribers_.find(event.id);
  if (found == subscribers_.end() || found->second.cancelled) return;
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
  const auto found = subscribers_.find(event.id);
  if (found == subscribers_.end()) return;
  const Subscriber& subscriber = found->second;
  EngineEvent out;
  out.id = event.id;
  out.finished = true;
  out.reason = subscriber.cancelled ? subscriber.cancelled_as : event.reason;
  out.error = event.error;
  out.refused = event.reason == FinishReason::kError && stats.first_scheduled <= 0;
  out.stats = stats;
  lanes_[subscriber.lane].pending.emplace_back(subscriber.queue, std::move(out));
  cancelled_ -= subscriber.cancelled ? 1 : 0;
  subscribers_.erase(found);
}

void EngineBridge::on_step(const StepStats& stats) {
  if (stats.executed) last_progress_ = stats.end;
  const std::lock_guard lock(mutex_);
  running_ = stats.scheduler.running;
  steps_.push_back(stats);
}

void EngineBridge::on_decision(const DecisionRecord& record) {
  metrics_.observe_decision(record);
}

void EngineBridge::on_delivered() {
  const std::lock_guard lock(mutex_);
  if (std::exchange(unsent_cancels_, false)) {
    for (auto& [id, subscriber] : subscribers_) {
      if (!subscriber.cancelled || subscriber.cancel_sent) continue;
      subscriber.cancel_sent = send_cancel(id);
      unsent_cancels_ = unsent_cancels_ || !subscriber.cancel_sent;
    }
  }
  post_pending();
}

void EngineBridge::post_pending() {
  const Micros time = now();
  for (Lane& lane : lanes_) {
    if (lane.pending.empty()) continue;
    const auto batch = std::make_shared<Batch>(std::move(lane.pending));
    lane.pending.clear();
    try {
      boost::asio::post(lane.executor, [this, batch, time] { deliver(*batch, time); });
    } catch (...) {  // the end of a request must not be lost
      lane.pending = std::move(*batch);
      throw;
    }
  }
  if (steps_.empty() || lanes_.empty()) return;
  boost::asio::post(lanes_.front().executor, [this, steps = std::exchange(steps_, {})] {
    for (const StepStats& step : steps) metrics_.observe_step(step);
  });
}

// On an io thread. Where memory is short, figures may be lost, but nobody's events.
void EngineBridge::deliver(Batch& batch, Micros time) {
  for (auto& [queue, event] : batch) {
    try {
      observe(event, queue.get(), time);
    } catch (const std::bad_alloc&) {
    }
    if (!queue) continue;  // nobody waits for it
    queue->push(std::move(event));
    queue->signalled = true;
  }
  for (const auto& [queue, event] : batch) {
    if (!queue || !std::exchange(queue->signalled, false)) continue;
    try {
      queue->wake();
    } catch (const std::exception& error) {
      spdlog::error("a request may have been lost: {}", error.what());
    }
  }
}

void EngineBridge::observe(const EngineEvent& event, EventQueue* queue, Micros time) {
  if (event.finished) {
    metrics_.observe_request(event.stats, event.reason);
  } else if (!event.prompt) {
    if (queue->last_token > 0) metrics_.observe_token_gap(time - queue->last_token);
    queue->last_token = time;
  }
}

}  // namespace vamp
