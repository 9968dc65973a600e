// A bounded queue from any number of threads to one.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <utility>
#include <vector>

#include "base/error.h"

namespace vamp {

// try_push() and wake() from any thread; drain() and wait_for() from the one that consumes. Never
// blocks a producer: a full queue refuses.
template <typename T>
class BoundedQueue {
 public:
  explicit BoundedQueue(size_t capacity) : capacity_(capacity) { VAMP_CHECK(capacity > 0); }

  bool try_push(T item) {
    {
      const std::lock_guard lock(mutex_);
      if (items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    ready_.notify_one();
    return true;
  }

  // All that is there, oldest first.
  std::vector<T> drain() {
    const std::lock_guard lock(mutex_);
    woken_ = false;
    return std::exchange(items_, {});
  }

  // Until there is something, wake() was called, or the time is over.
  void wait_for(std::chrono::microseconds time) {
    std::unique_lock lock(mutex_);
    ready_.wait_for(lock, time, [this] { return !items_.empty() || woken_; });
  }

  void wake() {
    {
      const std::lock_guard lock(mutex_);
      woken_ = true;
    }
    ready_.notify_one();
  }

 private:
  const size_t capacity_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::vector<T> items_;
  bool woken_ = false;
};

}  // namespace vamp
