#include "cli/exit_deadline.h"

#include <spdlog/spdlog.h>

#include <cstdlib>

namespace vamp {

ExitDeadline::~ExitDeadline() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  ended_.notify_one();
  thread_.join();
}

void ExitDeadline::arm(std::chrono::milliseconds time, std::string what) {
  thread_ = std::thread([this, time, what = std::move(what)] {
    std::unique_lock lock(mutex_);
    if (ended_.wait_for(lock, time, [this] { return over_; })) return;
    spdlog::critical("{} did not stop within {:g} s: the process ends without it", what,
                     std::chrono::duration<double>(time).count());
    spdlog::default_logger()->flush();
    std::_Exit(1);
  });
}

}  // namespace vamp
