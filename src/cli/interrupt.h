// Ctrl-C and kill, without a handler: the signals are blocked and looked at now and then.
#pragma once

#include <signal.h>

#include <initializer_list>

namespace vamp {

// Blocks the signals in the calling thread and those it starts, for its lifetime. After the first
// one they are let through again, so that a second one ends the program. One thread.
class InterruptWatch {
 public:
  explicit InterruptWatch(std::initializer_list<int> signals = {SIGINT});
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  // True from the first signal on.
  bool requested();

 private:
  void unblock();
  sigset_t set_;
  bool requested_ = false;
};

}  // namespace vamp
