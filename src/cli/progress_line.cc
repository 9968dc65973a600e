#include "cli/progress_line.h"

#include <fmt/format.h>
#include <unistd.h>

#include <ostream>

namespace vamp {

ProgressLine::ProgressLine(std::ostream& err, std::string run, bool inside)
    : err_(err), run_(std::move(run)), inside_(inside), terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressLine::~ProgressLine() {
  if (shown_ && terminal_) err_ << "\r\x1b[K" << std::flush;
}

void ProgressLine::update(const ReplayProgress& progress) {
  const auto now = std::chrono::steady_clock::now();
  if (now - last_ < std::chrono::seconds(terminal_ ? 1 : 10)) return;
  last_ = now;
  shown_ = true;
  const double spent = std::chrono::duration<double>(now - start_).count();
  std::string left = "?";
  if (progress.turns_ended > 0) {
    const int seconds = static_cast<int>(spent / progress.turns_ended *
                                         (progress.planned_turns - progress.turns_ended));
    left = fmt::format("{}:{:02}", seconds / 60, seconds % 60);
  }
  const SchedulerStats& stats = progress.scheduler;
  const std::string state = inside_
                                ? fmt::format("{:.0f}% cached, {} waiting, {} groups given up",
                                              100 * stats.hit_rate, stats.waiting, stats.groups_out)
                                : fmt::format("{} on their way", progress.running_turns);
  err_ << fmt::format("{}{}: {} of {} turns, {}, at {:.0f} s; about {} left{}",
                      terminal_ ? "\r\x1b[K" : "", run_, progress.turns_ended,
                      progress.planned_turns, state, progress.now / kSecond, left,
                      terminal_ ? "" : "\n")
       << std::flush;
}

}  // namespace vamp
