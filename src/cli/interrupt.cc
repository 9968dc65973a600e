#include "cli/interrupt.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

namespace vamp {
namespace {

sigset_t interrupt_set() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

InterruptWatch::InterruptWatch() {
  const sigset_t set = interrupt_set();
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
}

InterruptWatch::~InterruptWatch() {
  if (!requested_) unblock();
}

void InterruptWatch::unblock() {
  const sigset_t set = interrupt_set();
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
}

bool InterruptWatch::requested() {
  const sigset_t set = interrupt_set();
  const timespec now{0, 0};
  if (!requested_ && sigtimedwait(&set, nullptr, &now) == SIGINT) {
    requested_ = true;
    unblock();
  }
  return requested_;
}

}  // namespace vamp
