// What a trace is replayed against: an engine in process, or a server behind a URL.
#pragma once

#include "base/clock.h"
#include "base/error.h"
#include "engine/engine.h"

namespace vamp {

// What becomes of a request comes through the EngineListener that the target was made with, from
// within step() and wait(). One thread.
class ReplayTarget {
 public:
  virtual ~ReplayTarget() = default;
  // `request.arrival` is by the clock that the driver runs on.
  virtual void submit(RequestInput request) = 0;
  // The request ends soon, in a later step().
  virtual void cancel(RequestId id) = 0;
  // Does what can be done now. False: there was nothing.
  virtual bool step() = 0;
  // For when step() had nothing to do: returns once it may have, at `until` at the latest.
  virtual void wait(Micros until) = 0;
};

class EngineTarget final : public ReplayTarget {
 public:
  // Both must outlive this. The inbox holds a request and a cancellation of each session.
  EngineTarget(Engine& engine, Clock& clock) : engine_(engine), clock_(clock) {}

  void submit(RequestInput request) override {
    VAMP_CHECK(engine_.submit(std::move(request)),
               "the inbox is smaller than the number of sessions");
  }
  void cancel(RequestId id) override { VAMP_CHECK(engine_.cancel(id)); }
  bool step() override { return engine_.step(); }
  void wait(Micros until) override {
    const Micros next = std::min(until, engine_.next_wakeup());
    VAMP_CHECK(next < std::numeric_limits<Micros>::infinity(),
               "requests wait and nothing will wake the engine");
    clock_.sleep_until(next);
  }

 private:
  Engine& engine_;
  Clock& clock_;
};

}  // namespace vamp
