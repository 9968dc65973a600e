#include "exec/loaded_model.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "base/error.h"
#include "exec/moe_executor.h"
#include "kernels/cpu/cpu_ops.h"

namespace vamp {
namespace {

Checkpoint open_supported(const ExecutorConfig& config) {
  const ModelConfig model = load_model_config(config.model);
  if (model.architecture == Architecture::kQwen3Next) {
    throw Error("{}: {} models can't run on the CPU yet (supported there: mixtral, qwen3_moe)",
                config.model.string(), model.model_type);
  }
  return open_checkpoint(config.model, config.load_format, config.dummy_seed);
}

// The largest page up to 2 MiB of which one expert is a whole multiple, so that a group is a single
// expert and nothing is padded.
size_t choose_page_bytes(const ModelConfig& model) {
  const size_t down = static_cast<size_t>(model.moe_intermediate_size) * model.hidden_size *
                      dtype_bytes(model.dtype);
  for (size_t page = 2 * kMiB; page > 4 * kKiB; page /= 2) {
    if (down % page == 0) return page;
  }
  return 4 * kKiB;
}

// Device memory that neither weights nor KV use: activations, and what the f32 norms and alignment
// add to the dense weights as the layout counts them.
size_t reserve_bytes(const ExecutorConfig& config, const ModelConfig& model, const Ops& ops) {
  const RunnerLimits limits = runner_limits(config);
  const size_t dense = dense_weight_bytes(model, 1);
  return ModelRunner::buffer_bytes(model, ops.types(), limits) +
         MoeExecutor::buffer_bytes(model, ops, limits.max_tokens) +
         std::max(ModelWeights::bytes_needed(model), dense) - dense;
}

void log_layout(const ModelConfig& model, const MemoryLayout& layout) {
  spdlog::info("{}: dense weights {}, experts {} in {} groups, KV blocks of {}", model.model_type,
               format_bytes(layout.dense_weight_bytes), format_bytes(layout.expert_bytes()),
               layout.total_groups(), format_bytes(layout.block_bytes));
  if (layout.min_groups_out > 0) {
    spdlog::warn(
        "The weights exceed the device memory: {} of {} expert groups ({}) stay in host "
        "memory from the start and are copied in for each step that needs them",
        layout.min_groups_out, layout.total_groups(),
        format_bytes(layout.group_bytes() * layout.min_groups_out));
  }
}

}  // namespace

std::unique_ptr<Ops> make_ops(const ExecutorConfig& config) {
  CpuOpsOptions options;
  options.threads = config.threads;
  if (config.dtype == ComputeDType::kBf16) options.activation = DType::kBf16;
  if (config.dtype == ComputeDType::kF32) options.activation = DType::kF32;
  return make_cpu_ops(options);
}

RunnerLimits runner_limits(const ExecutorConfig& config) {
  return {config.max_num_batched_tokens,
          std::min(config.max_num_seqs, config.max_num_batched_tokens)};
}

MemoryLayout plan_memory(const ExecutorConfig& config, const ModelConfig& model, const Ops& ops) {
  MemoryLayoutOptions options;
  options.page_bytes = config.page_bytes != 0 ? config.page_bytes : choose_page_bytes(model);
  options.device_bytes = config.device_memory;
  options.reserve_bytes = reserve_bytes(config, model, ops);
  options.block_tokens = config.block_size;
  options.kv_dtype = ops.types().activation;
  options.max_offload_percent = config.max_offload_ratio;
  options.increment_groups = config.increment_groups;
  options.round_to_increment = config.round_to_increment;
  options.min_pool_bytes = config.min_pool;
  return make_memory_layout(model, options);
}

LoadedModel::LoadedModel(const ExecutorConfig& config, const Ops& ops, const LoadProgress& progress)
    : checkpoint_(open_supported(config)),
      layout_(plan_memory(config, checkpoint_.model(), ops)),
      experts_(checkpoint_, layout_),
      weights_(checkpoint_, [&](size_t done, size_t total) {
        if (progress) progress("dense weights", done, total);
      }) {
  log_layout(checkpoint_.model(), layout_);
}

void LoadedModel::report_experts(const LoadProgress& progress) {
  if (!progress) {
    experts_.set_report({});
    return;
  }
  const size_t out = layout_.group_bytes() * static_cast<size_t>(layout_.min_groups_out);
  experts_.set_report(
      [progress, done = size_t{0}, total = layout_.expert_bytes() - out](size_t bytes) mutable {
        done += bytes;
        progress("experts", done, total);
      });
}

}  // namespace vamp
