// Carries KV blocks between the device and the host tier while steps run.
#pragma once

#include <condition_variable>
#include <deque>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "core/step_plan.h"
#include "exec/host_tier_memory.h"
#include "memory/kv_arena.h"

namespace vamp {

// Owns a copy thread that makes the copies in the order given, block by block. The scheduler sees
// to it that no block in flight is written or given away before its copy is reported.
//
// All functions are for the executor's worker thread.
class KvCopier {
 public:
  struct Finished {
    std::vector<BlockCopy> demoted, promoted;
    Micros demote_us = 0, promote_us = 0;  // spent copying them
  };

  // `arena` and `host` must outlive it.
  KvCopier(const KvArena& arena, size_t block_bytes, const HostTierMemory& host,
           const Clock& clock);
  ~KvCopier();
  KvCopier(const KvCopier&) = delete;
  KvCopier& operator=(const KvCopier&) = delete;

  // Queues a step's copies and returns. Throws InvariantError for blocks that don't exist.
  void start(StepId step, std::span<const BlockCopy> demote, std::span<const BlockCopy> promote);
  // What has ended since the last call.
  Finished take_finished();
  // Until something has ended that take_finished() has not told, or nothing is left to do.
  void wait_for_one();
  // The step was lost: its copies don't happen. Waits for the one that is being made; forgets those
  // that were made (their targets belong to nobody).
  void cancel(StepId step);
  // Between the two no copy is being made, so that memory may be remapped.
  void pause();
  void resume();

 private:
  struct Copy {
    StepId step;
    BlockCopy blocks;
    bool demote;
    Micros took = 0;
  };
  void work();

  const KvArena& arena_;
  const size_t block_bytes_;
  const HostTierMemory& host_;
  const Clock& clock_;

  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  std::deque<Copy> queue_;
  std::vector<Copy> finished_;
  bool copying_ = false;  // the front of the queue
  bool paused_ = false;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace vamp
