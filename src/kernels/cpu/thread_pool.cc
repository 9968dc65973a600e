#include "kernels/cpu/thread_pool.h"

#include "base/error.h"

namespace vamp::cpu {
namespace {

constexpr int kSpins = 2000;  // some 50 us of pauses

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  VAMP_CHECK(threads >= 1);
  for (int i = 1; i < threads; ++i) {
    workers_.emplace_back([this, i] { worker_loop(i); });
  }
}

ThreadPool::~ThreadPool() {
  stop_.store(true);
  loops_.fetch_add(1);
  loops_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

// Takes an index if one is left. An index that is taken and not finished keeps its loop from
// ending, so function_ and body_ are of that loop.
bool ThreadPool::work_on_one(int worker) {
  int left = left_.load(std::memory_order_relaxed);
  do {
    if (left == 0) return false;
  } while (!left_.compare_exchange_weak(left, left - 1, std::memory_order_acquire,
                                        std::memory_order_relaxed));
  function_(body_, count_ - left, worker);
  if (running_.fetch_sub(1) == 1 && caller_sleeps_.load()) {
    running_.notify_one();
  }
  return true;
}

void ThreadPool::run(int count, Function function, const void* body) {
  function_ = function;
  body_ = body;
  count_ = count;
  running_.store(count, std::memory_order_relaxed);
  left_.store(count, std::memory_order_release);
  loops_.fetch_add(1);
  if (sleepers_.load() > 0) loops_.notify_all();
  while (work_on_one(0)) {
  }
  for (int spin = 0; spin < kSpins; ++spin) {
    if (running_.load(std::memory_order_acquire) == 0) return;
    pause();
  }
  caller_sleeps_.store(true);
  while (const int running = running_.load()) running_.wait(running);
  caller_sleeps_.store(false);
}

void ThreadPool::worker_loop(int worker) {
  uint32_t seen = 0;
  while (!stop_.load()) {
    if (work_on_one(worker)) continue;
    int spin = 0;
    while (spin < kSpins && left_.load(std::memory_order_relaxed) == 0 && !stop_.load()) {
      pause();
      ++spin;
    }
    if (spin < kSpins) continue;
    sleepers_.fetch_add(1);
    seen = loops_.load();
    if (left_.load() == 0 && !stop_.load()) loops_.wait(seen);
    sleepers_.fetch_sub(1);
  }
}

}  // namespace vamp::cpu
