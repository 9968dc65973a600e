// The executor that is always there: real checkpoints on the processor's cores. Also what the CUDA
// executor is tested against.
#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "core/executor.h"
#include "exec/executor_config.h"
#include "exec/loaded_model.h"
#include "exec/plan_runner.h"

namespace vamp {

// Owns the model, the "device" memory, which is a budget of the process's own, and one worker
// thread that carries out plans in order. Everything but the constructor and the destructor is for
// one thread, the engine's. The destructor waits for the plan under way; plans behind it are
// dropped.
class CpuExecutor final : public Executor {
 public:
  // Loads the model. `clock` must outlive this, and so must `memory`, if given: it is then used in
  // place of an own HostVirtualMemory. Throws Error for faults of the configuration, the model
  // folder or the budget.
  CpuExecutor(const ExecutorConfig& config, const Clock& clock, const LoadProgress& progress = {},
              VirtualMemory* memory = nullptr);
  ~CpuExecutor() override;

  void submit(StepPlan plan) override;
  StepResult wait() override;
  int in_flight() const override { return in_flight_; }

  const ModelConfig& model() const { return model_->config(); }
  const MemoryLayout& layout() const { return model_->layout(); }
  int host_blocks() const { return runner_->host_blocks(); }

 private:
  void work();

  std::unique_ptr<Ops> ops_;
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<VirtualMemory> own_memory_;
  std::unique_ptr<PlanRunner> runner_;
  int in_flight_ = 0;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<StepPlan> plans_;
  std::deque<StepResult> results_;
  std::exception_ptr dead_;  // serving can't go on
  bool stop_ = false;
  std::thread worker_;
};

}  // namespace vamp
