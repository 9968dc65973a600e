#include "exec/cpu_executor.h"

#include <spdlog/spdlog.h>

#include "base/error.h"
#include "kernels/cpu/cpu_ops.h"
#include "memory/host_virtual_memory.h"

namespace vamp {

CpuExecutor::CpuExecutor(const ExecutorConfig& config, const Clock& clock,
                         const LoadProgress& progress, VirtualMemory* memory) {
  const Micros start = clock.now();
  config.check();
  ops_ = make_ops(config);
  model_ = std::make_unique<LoadedModel>(config, *ops_, progress);
  if (memory == nullptr) {
    own_memory_ = std::make_unique<HostVirtualMemory>(
        HostVirtualMemoryOptions{.granularity = model_->layout().page_bytes});
    memory = own_memory_.get();
  }
  model_->report_experts(progress);
  runner_ = std::make_unique<PlanRunner>(config, *model_, model_->experts(), *memory, *ops_, clock);
  model_->report_experts({});
  spdlog::info("Loaded in {:.1f} s", (clock.now() - start) / kSecond);
  worker_ = std::thread([this] { work(); });
}

CpuExecutor::~CpuExecutor() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

void CpuExecutor::submit(StepPlan plan) {
  VAMP_CHECK(in_flight_ < 2, "a third plan in flight");
  ++in_flight_;
  std::lock_guard lock(mutex_);
  plans_.push_back(std::move(plan));
  changed_.notify_all();
}

StepResult CpuExecutor::wait() {
  VAMP_CHECK(in_flight_ > 0, "no plan in flight");
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !results_.empty() || dead_; });
  if (results_.empty()) std::rethrow_exception(dead_);
  StepResult result = std::move(results_.front());
  results_.pop_front();
  --in_flight_;
  return result;
}

void CpuExecutor::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !plans_.empty(); });
    if (stop_) return;
    const StepPlan plan = std::move(plans_.front());
    plans_.pop_front();
    lock.unlock();
    StepResult result;
    std::exception_ptr failure;
    try {
      result = runner_->run(plan);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure) {
      dead_ = failure;
    } else {
      results_.push_back(std::move(result));
    }
    changed_.notify_all();
    if (failure) return;
  }
}

}  // namespace vamp
