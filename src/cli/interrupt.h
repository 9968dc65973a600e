// Ctrl-C, without a handler: SIGINT is blocked and looked at between steps.
#pragma once

namespace vamp {

// Blocks SIGINT in the calling thread and those it starts, for its lifetime. After the first Ctrl-C
// the signal is let through again, so that a second one ends the program. One thread.
class InterruptWatch {
 public:
  InterruptWatch();
  ~InterruptWatch();
  InterruptWatch(const InterruptWatch&) = delete;
  InterruptWatch& operator=(const InterruptWatch&) = delete;

  // True from the first Ctrl-C on.
  bool requested();

 private:
  void unblock();
  bool requested_ = false;
};

}  // namespace vamp
