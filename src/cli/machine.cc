#include "cli/machine.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "model/gpu_presets.h"
#include "sim/sim_executor.h"

namespace vamp {
namespace {

constexpr size_t kPlenty = size_t{1}
                           << 50;  // a budget that any model fits, to learn its fixed parts

MachineProfile simulated_machine(const MachineSetup& setup) {
  if (!setup.profile.empty()) return machine_profile(setup.profile);
  for (const std::string& name : machine_profile_names()) {
    if (setup.gpu.starts_with(name)) return machine_profile(name);
  }
  throw Error("no speeds are known for --gpu {}: name a similar machine with --machine", setup.gpu);
}

size_t simulated_budget(const MachineSetup& setup, const GpuPreset& gpu) {
  if (setup.device_memory > 0) return setup.device_memory;
  const double share =
      setup.gpu_memory_utilization > 0 ? setup.gpu_memory_utilization : gpu.memory_utilization;
  return static_cast<size_t>(static_cast<double>(gpu.memory_bytes) * share);
}

Machine make_simulated(const MachineSetup& setup, const ModelConfig& model,
                       const PolicyTraits& traits) {
  const GpuPreset& gpu = gpu_preset(setup.gpu);
  MemoryLayoutOptions options;
  options.tensor_parallel = setup.tensor_parallel;
  options.reserve_bytes = gpu.reserve_bytes;
  options.block_tokens = setup.block_tokens;
  options.max_offload_percent = setup.max_offload_percent;
  options.round_to_increment = traits.whole_region_staging;  // as the paper does
  options.device_bytes = simulated_budget(setup, gpu);
  if (setup.kv_cache_memory > 0) {
    options.device_bytes = kPlenty;
    const MemoryLayout probe = make_memory_layout(model, options);
    options.device_bytes = probe.dense_weight_bytes + probe.reserve_bytes + probe.expert_bytes() +
                           setup.kv_cache_memory;
  }
  Machine machine;
  machine.own_layout = std::make_unique<MemoryLayout>(make_memory_layout(model, options));
  machine.layout = machine.own_layout.get();
  machine.clock = std::make_unique<VirtualClock>();
  machine.executor = std::make_unique<SimExecutor>(
      model, *machine.layout, SimConfig{simulated_machine(setup), {}}, *machine.clock);
  if (traits.host_tier) {
    machine.scheduler.host_blocks =
        static_cast<int>(setup.kv_offloading / machine.layout->block_bytes);
  }
  return machine;
}

}  // namespace

Machine make_machine(const MachineSetup& setup, const ModelConfig& model,
                     const PolicyTraits& traits) {
  Machine machine = make_simulated(setup, model, traits);
  const int host_blocks = machine.scheduler.host_blocks;
  machine.scheduler = setup.scheduler;
  machine.scheduler.host_blocks = host_blocks;
  machine.scheduler.two_way_boundary = traits.two_way_boundary;
  machine.scheduler.eos_token_ids = model.eos_token_ids;
  if (!traits.moves_boundary) machine.scheduler.max_groups_out = machine.layout->min_groups_out;
  machine.staging = traits.whole_region_staging ? StagingMode::kWholeRegion : setup.staging;
  return machine;
}

std::string describe_machine(const MachineSetup& setup) {
  if (setup.executor == "sim") {
    return fmt::format(
        "simulated {}{}", setup.gpu,
        setup.tensor_parallel > 1 ? fmt::format(", TP{}", setup.tensor_parallel) : "");
  }
  return "this processor";
}

}  // namespace vamp
