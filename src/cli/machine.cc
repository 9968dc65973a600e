#include "cli/machine.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "exec/cpu_executor.h"
#include "model/gpu_presets.h"
#include "sim/closed_loop.h"
#include "sim/sim_executor.h"

namespace vamp {
namespace {

// A budget that any model fits, to learn its fixed parts; with blocks so large that they can be
// counted whatever a token's size.
constexpr size_t kPlenty = size_t{1} << 42;
constexpr int kPlentyBlockTokens = 4096;

MachineProfile simulated_machine(const MachineSetup& setup) {
  return machine_profile(setup.profile.empty() ? setup.gpu : setup.profile);
}

size_t simulated_budget(const MachineSetup& setup, const GpuPreset& gpu) {
  if (setup.device_memory > 0) return setup.device_memory;
  const double share =
      setup.gpu_memory_utilization > 0 ? setup.gpu_memory_utilization : gpu.memory_utilization;
  return static_cast<size_t>(static_cast<double>(gpu.memory_bytes) * share);
}

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// The budget that leaves the KV pool what was asked for, when every expert is resident: at least
// that, as the pool is made of whole blocks and pages.
size_t budget_for_pool(const MachineSetup& setup, const MemoryLayout& ample) {
  const size_t block = static_cast<size_t>(setup.block_tokens) * ample.kv_bytes_per_token;
  const size_t pool =
      setup.kv_cache_tokens > 0
          ? round_up(static_cast<size_t>(setup.kv_cache_tokens) * ample.kv_bytes_per_token, block)
          : std::max(setup.kv_cache_memory, block);
  return ample.dense_weight_bytes + ample.reserve_bytes + ample.expert_bytes() +
         round_up(pool, ample.page_bytes);
}

bool sized_by_pool(const MachineSetup& setup) {
  return setup.kv_cache_memory > 0 || setup.kv_cache_tokens > 0;
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
  if (sized_by_pool(setup)) {
    MemoryLayoutOptions ample = options;
    ample.device_bytes = kPlenty;
    ample.block_tokens = kPlentyBlockTokens;
    options.device_bytes = budget_for_pool(setup, make_memory_layout(model, ample));
  }
  Machine machine;
  machine.own_layout = std::make_unique<MemoryLayout>(make_memory_layout(model, options));
  machine.layout = machine.own_layout.get();
  if (setup.real_clock) {
    machine.clock = std::make_unique<RealClock>();
  } else {
    machine.clock = std::make_unique<VirtualClock>();
  }
  SimConfig sim;
  sim.fixed_step = setup.step_time;
  sim.machine = simulated_machine(setup);
  machine.policies = policy_config_for(model, *machine.layout, sim);
  machine.executor = std::make_unique<SimExecutor>(model, *machine.layout, sim, *machine.clock);
  if (traits.host_tier) {
    const size_t blocks = setup.kv_offloading / machine.layout->block_bytes;
    machine.scheduler.host_blocks = static_cast<int>(blocks);
  }
  return machine;
}

// The device's memory is touched at the start, the host tier by and by: the kernel would end us, or
// others, in the middle.
void check_physical_memory(const ExecutorConfig& config) {
  const size_t have =
      static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (config.device_memory + config.kv_offloading_size <= have) return;
  throw Error(
      "{} of device memory and {} of host tier are more than this machine's {}: lower "
      "--device-memory (or the KV pool) or --kv-offloading-size",
      format_bytes(config.device_memory), format_bytes(config.kv_offloading_size),
      format_bytes(have));
}

Machine make_cpu(const MachineSetup& setup, const ModelConfig& model, const PolicyTraits& traits,
                 const LoadProgress& progress) {
  ExecutorConfig config;
  config.model = setup.model;
  config.load_format = setup.dummy_weights ? LoadFormat::kDummy : LoadFormat::kSafetensors;
  config.dtype = setup.dtype;
  config.threads = setup.threads;
  config.block_size = setup.block_tokens;
  config.max_offload_ratio = setup.max_offload_percent;
  config.round_to_increment = traits.whole_region_staging;
  config.kv_offloading_size = traits.host_tier ? setup.kv_offloading : 0;
  config.max_num_batched_tokens = setup.scheduler.max_num_batched_tokens;
  config.max_num_seqs = setup.scheduler.max_num_seqs;
  if (setup.device_memory > 0) config.device_memory = setup.device_memory;
  if (sized_by_pool(setup)) {
    ExecutorConfig ample = config;
    ample.device_memory = kPlenty;
    ample.block_size = kPlentyBlockTokens;
    config.device_memory = budget_for_pool(setup, plan_memory(ample, model, *make_ops(config)));
  }
  check_physical_memory(config);
  Machine machine;
  machine.clock = std::make_unique<RealClock>();
  auto executor = std::make_unique<CpuExecutor>(config, *machine.clock, progress);
  machine.layout = &executor->layout();
  machine.scheduler.host_blocks = executor->host_blocks();
  SimConfig guess;
  guess.machine = machine_profile("cpu");
  machine.policies = policy_config_for(model, *machine.layout, guess);
  machine.executor = std::move(executor);
  return machine;
}

}  // namespace

Machine make_machine(const MachineSetup& setup, const ModelConfig& model,
                     const PolicyTraits& traits, const LoadProgress& progress) {
  Machine machine = setup.executor == "sim" ? make_simulated(setup, model, traits)
                                            : make_cpu(setup, model, traits, progress);
  const int host_blocks = machine.scheduler.host_blocks;
  machine.scheduler = setup.scheduler;
  machine.scheduler.host_blocks = host_blocks;
  machine.scheduler.two_way_boundary = traits.two_way_boundary;
  machine.scheduler.eos_token_ids = model.eos_token_ids;
  machine.scheduler.limits.vocab_size = model.vocab_size;
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
