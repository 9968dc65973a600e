#include "cli/engine_flags.h"

#include "base/units.h"
#include "cli/commands.h"

namespace vamp {
namespace {

// vLLM takes --kv-offloading-size in GiB; a unit may be written.
size_t host_tier(const std::string& text) {
  constexpr const char* kFlag = "--kv-offloading-size";
  const bool bare = text.find_first_not_of("0123456789.") == std::string::npos;
  const size_t bytes = memory_flag(kFlag, bare ? text + "GiB" : text);
  if (bytes > 2048 * kGiB) throw Error("{} {}: more than 2TiB", kFlag, text);
  return bytes;
}

void add_sim_flags(CLI::App& command, EngineFlags& flags) {
  MachineSetup& machine = flags.machine;
  flags.sim_only = {
      command.add_option("--gpu", machine.gpu, "sim: GPU preset, see vamp inspect"),
      command.add_option("--machine", machine.profile, "sim: speeds (default: the GPU's)"),
      command
          .add_option("--gpu-memory-utilization", machine.gpu_memory_utilization,
                      "sim: share of the GPU's memory to use")
          ->check(number_from(0.01, 1)),
      command
          .add_option("--tensor-parallel-size", machine.tensor_parallel,
                      "sim: GPUs that the model is cut over; short form -tp")
          ->check(number_from(1, 1024))};
}

void add_cpu_flags(CLI::App& command, EngineFlags& flags) {
  MachineSetup& machine = flags.machine;
  flags.cpu_only = {
      command
          .add_option("--threads", machine.threads,
                      "cpu: threads that compute (default: one a processor)")
          ->check(number_from(1, 1024)),
      command.add_option("--dtype", flags.dtype, "cpu: auto, bfloat16 or float32"),
      command.add_option("--load-format", flags.load_format, "cpu: auto, safetensors or dummy")};
}

void check_executor(const EngineFlags& flags) {
  const bool sim = flags.machine.executor == "sim";
  for (const CLI::Option* option : sim ? flags.cpu_only : flags.sim_only) {
    if (option->count() == 0) continue;
    // Scripts for vllm serve say so of one GPU, which is true of one CPU.
    if (option->get_name() == "--tensor-parallel-size" && flags.machine.tensor_parallel == 1)
      continue;
    throw Error("{} says nothing to --executor {}: leave it out, or use --executor {}",
                option->get_name(), flags.machine.executor, sim ? "cpu" : "sim");
  }
}

}  // namespace

void add_engine_flags(CLI::App& command, EngineFlags& flags) {
  MachineSetup& machine = flags.machine;
  SchedulerConfig& scheduler = machine.scheduler;
  command
      .add_option("--executor", machine.executor,
                  "cpu, or sim: a latency model in place of a machine")
      ->check(CLI::IsMember({"cpu", "sim"}));
  add_sim_flags(command, flags);
  CLI::Option* budget =
      command.add_option("--device-memory", flags.device_memory,
                         "budget for weights and KV, like 2GiB (default: 2GiB on the CPU, the "
                         "GPU's memory in the simulator)");
  CLI::Option* pool = command
                          .add_option("--kv-cache-memory-bytes", flags.kv_cache_memory,
                                      "instead: the KV pool with every expert resident")
                          ->excludes(budget);
  command
      .add_option("--kv-cache-tokens", machine.kv_cache_tokens,
                  "the same in tokens: at least so many, in whole blocks and pages")
      ->excludes(budget)
      ->excludes(pool)
      ->check(count_from(1));
  command.add_option("--kv-offloading-size", flags.kv_offloading,
                     "host tier of the KV cache, in GiB or like 512MiB (default none)");
  command
      .add_option("--max-offload-ratio", machine.max_offload_percent,
                  "VAMP-r: percent of a layer's experts that may be given up (default 15)")
      ->check(number_from(0, 100));
  command.add_option("--block-size", machine.block_tokens, "tokens a KV block (default 16)")
      ->check(number_from(1, 1 << 16));
  command.add_option("--staging", flags.staging,
                     "auto, whole-region or activated (the paper's policy: always whole-region)");
  command
      .add_option("--max-num-seqs", scheduler.max_num_seqs,
                  "running requests at most (default 128)")
      ->check(number_from(1, 1 << 16));
  command
      .add_option("--max-num-batched-tokens", scheduler.max_num_batched_tokens,
                  "tokens of one step (default 8192)")
      ->check(number_from(1, kMostTokens));
  command
      .add_option(
          "--max-model-len", scheduler.max_model_len,
          "prompt and output of one request (default: what the pool holds; in vamp serve no more "
          "than the model was made for)")
      ->check(number_from(1, kMostTokens));
  command.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching",
                   scheduler.enable_prefix_caching, "reuse cached prefixes (default on)");
  command.add_option("--scheduling-policy", flags.scheduling, "fcfs or priority");
  command.add_option(
      "--admission", flags.admission,
      "whole-prompt or first-chunk: how much of a request must fit before it enters");
  add_cpu_flags(command, flags);
}

MachineSetup finish_engine_flags(EngineFlags flags) {
  check_executor(flags);
  MachineSetup& machine = flags.machine;
  machine.scheduler.admission = choose_flag<AdmissionRule>(
      "--admission", flags.admission,
      {{"whole-prompt", AdmissionRule::kWholePrompt}, {"first-chunk", AdmissionRule::kFirstChunk}});
  machine.scheduler.scheduling = choose_flag<SchedulingPolicy>(
      "--scheduling-policy", flags.scheduling,
      {{"fcfs", SchedulingPolicy::kFcfs}, {"priority", SchedulingPolicy::kPriority}});
  machine.staging = choose_flag<StagingMode>("--staging", flags.staging,
                                             {{"auto", StagingMode::kAuto},
                                              {"whole-region", StagingMode::kWholeRegion},
                                              {"activated", StagingMode::kActivated}});
  machine.dtype = choose_flag<ComputeDType>("--dtype", flags.dtype,
                                            {{"auto", ComputeDType::kAuto},
                                             {"bfloat16", ComputeDType::kBf16},
                                             {"float32", ComputeDType::kF32}});
  machine.dummy_weights =
      choose_flag<bool>("--load-format", flags.load_format,
                        {{"auto", false}, {"safetensors", false}, {"dummy", true}});
  if (!flags.device_memory.empty())
    machine.device_memory = memory_flag("--device-memory", flags.device_memory);
  if (!flags.kv_cache_memory.empty())
    machine.kv_cache_memory = memory_flag("--kv-cache-memory-bytes", flags.kv_cache_memory);
  if (!flags.kv_offloading.empty()) machine.kv_offloading = host_tier(flags.kv_offloading);
  if (machine.executor == "sim" && machine.gpu.empty())
    throw Error("--executor sim: name the simulated GPU with --gpu");
  return machine;
}

}  // namespace vamp
