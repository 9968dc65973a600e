// Brings given-up experts back for the length of one MoE layer, on the host backend.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "memory/hbm_partition.h"

namespace vamp {

struct StagingCounters {
  size_t staged_bytes = 0;  // copied from the host copy
  Micros stall = 0;         // the executor's thread waited for copies
  Micros copy = 0;          // the copy thread copied
};

// Copies given-up experts from the host copy to the experts' own addresses, behind which the
// staging bank of the layer's parity lies. A copy thread of its own works through the layers in the
// order in which they were begun, so the copy for the next layer overlaps the present layer's
// compute; two banks, so at most one layer ahead: a bank is overwritten only after the layer that
// used it last was released.
//
// One MoE layer's life, on the executor's thread:
//
//   begin_region(l) or begin_experts(l, chosen)   queues the copy, returns at once
//   wait(l)                                       it has arrived: compute
//   release(l)                                    its MoE is done: the bank may be overwritten
//
// Whole regions: begin all layers that have given-up groups at the start of a step, first to last;
// the thread keeps the order and waits for banks by itself. Activated experts: begin after the
// layer's router. wait and release of a layer that was not begun do nothing, so layers without
// given-up groups need no special case. Nothing crosses a step's border: end_step() checks that all
// begun layers were released, and only then may the boundary move. A first MoE layer that is itself
// given up is begun at the step's start too; then its attention and router alone hide the copy.
//
// If the host copy cannot be read, wait throws that Error; the step is lost, and abandon() makes
// the staging ready for the next one.
//
// begin, wait, release, end_step, abandon: the executor's thread only. `clock` is read by both
// threads.
class Staging {
 public:
  Staging(const HbmPartition& partition, const HostExperts& source, const Clock& clock);
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // All given-up experts of the layer. Does nothing if there are none.
  void begin_region(int moe_layer);
  // Those of `experts` (ascending) that are given up. Does nothing if there are none.
  void begin_experts(int moe_layer, std::span<const int> experts);
  void wait(int moe_layer);
  void release(int moe_layer);

  // Counters since the last end_step(). VAMP_CHECKs that every begun layer was released.
  StagingCounters end_step();
  // Drops copies not begun yet, waits for the running one, forgets all. For a step that failed
  // midway.
  void abandon();

 private:
  struct Run {  // experts next to each other are one copy
    int first = 0;
    int count = 0;
  };
  enum class State { kIdle, kQueued, kReady };
  struct Job {
    int moe_layer = 0;
    std::vector<Run> runs;
  };

  void begin(int moe_layer, std::vector<Run> runs);
  void work();
  void copy(const Job& job, std::unique_lock<std::mutex>& lock);

  const HbmPartition& partition_;
  const HostExperts& source_;
  const Clock& clock_;

  std::mutex mutex_;
  std::condition_variable work_;   // to the copy thread: a job, a bank or the end
  std::condition_variable ready_;  // to the executor: a state has changed
  std::deque<Job> jobs_;
  std::vector<State> states_;  // by MoE layer
  std::array<bool, 2> bank_in_use_{};
  bool copying_ = false;
  bool stop_ = false;
  std::exception_ptr failure_;
  StagingCounters counters_;
  std::thread thread_;
};

}  // namespace vamp
