// A model made ready to run: configuration, memory layout and weights.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "exec/checkpoint_experts.h"
#include "exec/executor_config.h"
#include "exec/model_runner.h"
#include "exec/model_weights.h"
#include "kernels/ops.h"
#include "model/checkpoint.h"
#include "model/memory_layout.h"

namespace vamp {

// What loading has come to, in bytes, from the thread that loads: "dense weights", then "experts".
using LoadProgress = std::function<void(const std::string& what, size_t done, size_t total)>;

// The CPU's operations as the configuration asks for them.
std::unique_ptr<Ops> make_ops(const ExecutorConfig& config);
RunnerLimits runner_limits(const ExecutorConfig& config);
// Throws Error with the numbers when the budget can't hold the model.
MemoryLayout plan_memory(const ExecutorConfig& config, const ModelConfig& model, const Ops& ops);

// Owns all of it but the experts' device memory, which the partition fills. Its parts refer to each
// other: it stays where it was made.
class LoadedModel {
 public:
  // Checks that all tensors are there, plans the memory and reads the dense weights. Throws Error
  // for a model that the CPU can't run, a faulty checkpoint, or a budget that is too small. What is
  // unusual but works (groups given up from the start) is said in the log.
  LoadedModel(const ExecutorConfig& config, const Ops& ops, const LoadProgress& progress);
  LoadedModel(const LoadedModel&) = delete;
  LoadedModel& operator=(const LoadedModel&) = delete;

  const ModelConfig& config() const { return checkpoint_.model(); }
  const MemoryLayout& layout() const { return layout_; }
  const HostExperts& experts() const { return experts_; }
  const ModelWeights& weights() const { return weights_; }
  // Who is told of experts as they are copied, until it is called again. Not while a step runs.
  void report_experts(const LoadProgress& progress);

 private:
  Checkpoint checkpoint_;
  MemoryLayout layout_;
  CheckpointExperts experts_;
  ModelWeights weights_;
};

}  // namespace vamp
