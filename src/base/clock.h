// Time as an argument. The scheduler, the cache and the policy are handed `now`; only the loop, the
// executors and the load driver hold a Clock.
#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/units.h"

namespace vamp {

class Clock {
 public:
  virtual ~Clock() = default;
  virtual Micros now() const = 0;
  // Blocks (real) or jumps (virtual) until `time`; returns at once when it has passed.
  virtual void sleep_until(Micros time) = 0;
  // Sleeping costs no real time.
  virtual bool jumps() const { return false; }
};

// Monotonic time since construction.
class RealClock final : public Clock {
 public:
  Micros now() const override {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start_)
        .count();
  }
  void sleep_until(Micros time) override {
    std::this_thread::sleep_until(start_ + std::chrono::nanoseconds(static_cast<int64_t>(time * 1e3)));
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// Simulated time: it moves only when somebody moves it. One thread.
class VirtualClock final : public Clock {
 public:
  Micros now() const override { return now_; }
  void sleep_until(Micros time) override { now_ = std::max(now_, time); }
  bool jumps() const override { return true; }

 private:
  Micros now_ = 0;
};

}  // namespace vamp
