// A child process that is spoken to in frames: four bytes of length (little endian), then the
// bytes.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace vamp {

// Owns the process and the socket to it (its stdin and stdout; stderr is ours). The child gets
// nothing else of ours: no descriptor, no environment, no signal from our terminal. One thread.
// Never leaves a process behind: the destructor kills and reaps it.
class ChildProcess {
 public:
  // Starts `arguments[0]`, a path. Throws Error when that fails.
  explicit ChildProcess(const std::vector<std::string>& arguments);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  enum class Outcome { kOk, kTimeout, kEnded, kTooLong };

  // Sends a frame and reads one, both within `timeout` of real time; a frame of more than
  // `max_bytes` is not read. After anything but kOk the process is of no more use.
  Outcome exchange(std::string_view request, Micros timeout, size_t max_bytes, std::string& reply);
  // Reads a frame that was not asked for.
  Outcome receive(Micros timeout, size_t max_bytes, std::string& reply);

  // Kills and reaps the process; the signal that ended it, or 0 when it had left by itself. With
  // `expected` (after kEnded) it may take a moment to end by itself.
  int end(bool expected);

 private:
  Outcome transfer(char* data, size_t size, bool sending, Micros deadline);
  Outcome receive_until(Micros deadline, size_t max_bytes, std::string& reply);

  pid_t pid_ = -1;
  int socket_ = -1;
};

}  // namespace vamp
