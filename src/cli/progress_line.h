// How far a replay is.
#pragma once

#include <chrono>
#include <iosfwd>
#include <string>

#include "replay/replay_driver.h"

namespace vamp {

// "priced: 412 of 2059 turns, 83% cached, 0 waiting, 12 groups given up, at 123 s; about 0:42
// left": on a terminal one line once a second, in a log a line every ten.
class ProgressLine {
 public:
  // `inside`: an engine in this process tells what is in it; else the turns on their way are told.
  ProgressLine(std::ostream& err, std::string run, bool inside);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void update(const ReplayProgress& progress);

 private:
  std::ostream& err_;
  const std::string run_;
  const bool inside_, terminal_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now(), last_ = start_;
  bool shown_ = false;
};

}  // namespace vamp
