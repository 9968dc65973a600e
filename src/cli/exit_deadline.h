// The end of a process that must end in time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>

namespace vamp {

// Declared before what may hang while it is taken apart: armed, it ends the process with status 1
// unless it goes before the time is over. One thread.
class ExitDeadline {
 public:
  ExitDeadline() = default;
  ~ExitDeadline();
  ExitDeadline(const ExitDeadline&) = delete;
  ExitDeadline& operator=(const ExitDeadline&) = delete;

  // Once. `what` has not ended by then, says the log.
  void arm(std::chrono::milliseconds time, std::string what);

 private:
  std::mutex mutex_;
  std::condition_variable ended_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace vamp
