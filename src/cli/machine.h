// What a policy runs on: a real model on this machine's processor, or a simulated GPU.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"
#include "core/executor.h"
#include "core/make_policy.h"
#include "core/scheduler.h"
#include "exec/executor_config.h"
#include "exec/loaded_model.h"
#include "model/memory_layout.h"
#include "model/model_config.h"

namespace vamp {

struct MachineSetup {
  std::string model;                  // Hugging Face folder (sim: or a config.json)
  std::string executor = "cpu";       // or "sim"
  std::string gpu;                    // sim: preset of the GPU's memory
  std::string profile;                // sim: speeds of another machine; empty: the GPU's
  double gpu_memory_utilization = 0;  // sim: 0: the preset's
  int tensor_parallel = 1;            // sim
  size_t device_memory = 0;    // budget for everything; 0: the preset's, or for the CPU 2 GiB
  size_t kv_cache_memory = 0;  // instead: KV pool with all experts resident
  int kv_cache_tokens = 0;     // or this, in tokens
  size_t kv_offloading = 0;    // host tier
  double max_offload_percent = 15;
  int block_tokens = 16;
  StagingMode staging = StagingMode::kAuto;
  int threads = 0;          // cpu
  bool real_clock = false;  // sim: steps take the time that they would; else it is skipped
  Micros step_time = 0;     // sim: of every step, instead of the latency model's; 0: the model's
  ComputeDType dtype = ComputeDType::kAuto;  // cpu
  bool dummy_weights = false;                // cpu
  SchedulerConfig scheduler;
};

// One policy's machine. The executor and what it needs, fresh for each run.
struct Machine {
  std::unique_ptr<Clock> clock;
  std::unique_ptr<MemoryLayout> own_layout;
  std::unique_ptr<Executor> executor;
  const MemoryLayout* layout = nullptr;
  SchedulerConfig scheduler;  // as the policy wants it
  PolicyConfig policies;      // first values; what is measured takes their place
  StagingMode staging = StagingMode::kAuto;
};

// Throws Error for what cannot be: unknown names, a model that does not fit, a broken checkpoint;
// and what `progress` throws, which is told of weights as they are loaded.
Machine make_machine(const MachineSetup& setup, const ModelConfig& model,
                     const PolicyTraits& traits, const LoadProgress& progress = {});

// One line for the report, e.g. "sim h200, 0.90 of 141 GiB".
std::string describe_machine(const MachineSetup& setup);

}  // namespace vamp
