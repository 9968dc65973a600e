#include "cli/interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

namespace vamp {
InterruptWatch::InterruptWatch(std::initializer_list<int> signals) {
  sigemptyset(&set_);
  for (const int signal : signals) sigaddset(&set_, signal);
  pthread_sigmask(SIG_BLOCK, &set_, nullptr);
}

InterruptWatch::~InterruptWatch() {
  if (!requested_) unblock();
}

void InterruptWatch::unblock() {
  pthread_sigmask(SIG_UNBLOCK, &set_, nullptr);
}

bool InterruptWatch::requested() {
  const timespec now{0, 0};
  if (!requested_ && sigtimedwait(&set_, nullptr, &now) > 0) {
    requested_ = true;
    unblock();
  }
  return requested_;
}

}  // namespace vamp
