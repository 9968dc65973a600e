#include "memory/staging.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace vamp {

Staging::Staging(const HbmPartition& partition, const HostExperts& source, const Clock& clock)
    : partition_(partition),
      source_(source),
      clock_(clock),
      states_(static_cast<size_t>(partition.layout().moe_layers), State::kIdle) {
  thread_ = std::thread([this] { work(); });
}

Staging::~Staging() {
  {
    const std::lock_guard lock(mutex_);
    jobs_.clear();
    stop_ = true;
  }
  work_.notify_one();
  thread_.join();
}

void Staging::begin_region(int moe_layer) {
  const int first = partition_.experts().first_given_up_expert(moe_layer);
  const int count = partition_.experts().experts_out(moe_layer);
  if (count > 0) begin(moe_layer, {{first, count}});
}

void Staging::begin_experts(int moe_layer, std::span<const int> experts) {
  const int resident = partition_.experts().first_given_up_expert(moe_layer);
  std::vector<Run> runs;
  for (const int expert : experts) {
    if (expert < resident) continue;
    if (!runs.empty() && runs.back().first + runs.back().count == expert) {
      ++runs.back().count;
    } else {
      VAMP_CHECK(runs.empty() || runs.back().first < expert, "experts to stage are not ascending");
      runs.push_back({expert, 1});
    }
  }
  if (!runs.empty()) begin(moe_layer, std::move(runs));
}

void Staging::begin(int moe_layer, std::vector<Run> runs) {
  {
    const std::lock_guard lock(mutex_);
    State& state = states_[moe_layer];
    VAMP_CHECK(state == State::kIdle, "MoE layer {} is staged already", moe_layer);
    state = State::kQueued;
    jobs_.push_back({moe_layer, std::move(runs)});
  }
  work_.notify_one();
}

void Staging::wait(int moe_layer) {
  std::unique_lock lock(mutex_);
  State& state = states_[moe_layer];
  if (state == State::kQueued && !failure_) {
    const Micros start = clock_.now();
    ready_.wait(lock, [&] { return state == State::kReady || failure_; });
    counters_.stall += clock_.now() - start;
  }
  if (state != State::kIdle && failure_) std::rethrow_exception(failure_);
}

void Staging::release(int moe_layer) {
  {
    const std::lock_guard lock(mutex_);
    State& state = states_[moe_layer];
    if (state == State::kIdle) return;
    VAMP_CHECK(state == State::kReady, "MoE layer {} is released before its copies have ended",
               moe_layer);
    state = State::kIdle;
    bank_in_use_[moe_layer % 2] = false;
  }
  work_.notify_one();
}

StagingCounters Staging::end_step() {
  const std::lock_guard lock(mutex_);
  for (size_t layer = 0; layer < states_.size(); ++layer)
    VAMP_CHECK(states_[layer] == State::kIdle, "MoE layer {} is still staged at the step's end",
               layer);
  return std::exchange(counters_, {});
}

void Staging::abandon() {
  std::unique_lock lock(mutex_);
  jobs_.clear();
  ready_.wait(lock, [this] { return !copying_; });
  std::fill(states_.begin(), states_.end(), State::kIdle);
  bank_in_use_.fill(false);
  failure_ = nullptr;
}

void Staging::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [this] {
      return stop_ || (!failure_ && !jobs_.empty() && !bank_in_use_[jobs_.front().moe_layer % 2]);
    });
    if (stop_) return;
    const Job job = std::move(jobs_.front());
    jobs_.pop_front();
    bank_in_use_[job.moe_layer % 2] = true;
    copying_ = true;
    try {
      copy(job, lock);
    } catch (...) {
      if (!lock.owns_lock()) lock.lock();
      failure_ = std::current_exception();
    }
    copying_ = false;
    ready_.notify_all();
  }
}

// Called with the lock, which it gives up while it copies.
void Staging::copy(const Job& job, std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  const Micros start = clock_.now();
  size_t experts = 0;
  for (const Run& run : job.runs) {
    source_.copy(job.moe_layer, run.first, run.count,
                 partition_.experts().expert(job.moe_layer, run.first));
    experts += static_cast<size_t>(run.count);
  }
  const Micros end = clock_.now();
  lock.lock();
  states_[job.moe_layer] = State::kReady;
  counters_.copy += end - start;
  counters_.staged_bytes += experts * partition_.layout().shard_bytes();
}

}  // namespace vamp
