#include "exec/kv_copier.h"

#include <cstring>

#include "base/error.h"

namespace vamp {

KvCopier::KvCopier(const KvArena& arena, size_t block_bytes, const HostTierMemory& host,
                   const Clock& clock)
    : arena_(arena), block_bytes_(block_bytes), host_(host), clock_(clock), thread_([this] {
        work();
      }) {}

KvCopier::~KvCopier() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void KvCopier::start(StepId step, std::span<const BlockCopy> demote,
                     std::span<const BlockCopy> promote) {
  if (demote.empty() && promote.empty()) return;
  std::lock_guard lock(mutex_);
  const auto queue = [&](std::span<const BlockCopy> copies, bool is_demote) {
    for (const BlockCopy& copy : copies) {
      VAMP_CHECK(arena_.block_mapped(copy.device), "copy of block {}, which is not mapped",
                 copy.device);
      VAMP_CHECK(copy.host >= 0 && copy.host < host_.blocks(), "copy with host block {} of {}",
                 copy.host, host_.blocks());
      queue_.push_back({step, copy, is_demote});
    }
  };
  queue(demote, true);
  queue(promote, false);
  changed_.notify_all();
}

KvCopier::Finished KvCopier::take_finished() {
  Finished result;
  std::lock_guard lock(mutex_);
  for (const Copy& copy : finished_) {
    (copy.demote ? result.demoted : result.promoted).push_back(copy.blocks);
    (copy.demote ? result.demote_us : result.promote_us) += copy.took;
  }
  finished_.clear();
  return result;
}

void KvCopier::wait_for_one() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !finished_.empty() || queue_.empty(); });
}

void KvCopier::pause() {
  std::unique_lock lock(mutex_);
  paused_ = true;
  changed_.wait(lock, [&] { return !copying_; });
}

void KvCopier::resume() {
  std::lock_guard lock(mutex_);
  paused_ = false;
  changed_.notify_all();
}

void KvCopier::cancel(StepId step) {
  pause();
  {
    std::lock_guard lock(mutex_);
    std::erase_if(queue_, [&](const Copy& copy) { return copy.step == step; });
    std::erase_if(finished_, [&](const Copy& copy) { return copy.step == step; });
  }
  resume();
}

void KvCopier::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || (!paused_ && !queue_.empty()); });
    if (stop_) return;
    Copy copy = queue_.front();
    copying_ = true;
    lock.unlock();
    const Micros start = clock_.now();
    std::byte* device = arena_.block(copy.blocks.device);
    std::byte* host = host_.block(copy.blocks.host);
    std::memcpy(copy.demote ? host : device, copy.demote ? device : host, block_bytes_);
    copy.took = clock_.now() - start;
    lock.lock();
    copying_ = false;
    queue_.pop_front();
    finished_.push_back(copy);
    changed_.notify_all();
  }
}

}  // namespace vamp
