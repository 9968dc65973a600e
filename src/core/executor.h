// Who carries out plans: CpuExecutor and CudaExecutor (src/exec), SimExecutor (src/sim).
#pragma once

#include "core/step_plan.h"

namespace vamp {

// Used from the engine's thread only. submit() never waits for the step to run; at most two plans
// may be in flight. wait() returns the oldest one's result. Throws Error only when serving cannot
// go on.
class Executor {
 public:
  virtual ~Executor() = default;
  virtual void submit(StepPlan plan) = 0;
  virtual StepResult wait() = 0;
  virtual int in_flight() const = 0;
};

}  // namespace vamp
