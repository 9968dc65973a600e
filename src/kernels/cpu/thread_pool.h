// The threads that share an operation.
//
// parallel_for(n, body) runs body(0) ... body(n-1), each once, on the calling thread and the
// pool's. Indices are taken one by one, so a thread that the system holds up delays only the index
// it has. Waiting threads spin for a moment and then sleep: a barrier that only spins collapses
// when the cores are shared. Used by one thread at a time; bodies must not throw, nor call the
// pool.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace vamp::cpu {

class ThreadPool {
 public:
  // `threads` work on a loop, the caller's included: threads - 1 are started.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // body(index, worker): worker is 0 ... threads()-1, distinct for bodies that run at the same
  // time.
  template <class Body>
  void parallel_for(int count, const Body& body) {
    if (count <= 1 || workers_.empty()) {
      for (int i = 0; i < count; ++i) body(i, 0);
      return;
    }
    run(
        count, [](const void* b, int i, int worker) { (*static_cast<const Body*>(b))(i, worker); },
        &body);
  }

 private:
  using Function = void (*)(const void* body, int index, int worker);

  void run(int count, Function function, const void* body);
  bool work_on_one(int worker);
  void worker_loop(int worker);

  // The loop in progress. Written only while no index is left and none is being worked on.
  Function function_ = nullptr;
  const void* body_ = nullptr;
  int count_ = 0;

  alignas(64) std::atomic<int> left_{0};        // indices not yet taken
  alignas(64) std::atomic<int> running_{0};     // indices not yet finished
  alignas(64) std::atomic<uint32_t> loops_{0};  // loops begun, or the end: what sleepers wait on
  std::atomic<int> sleepers_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
};

}  // namespace vamp::cpu
