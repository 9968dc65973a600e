#include "exec/executor_config.h"

#include "base/error.h"

namespace vamp {

std::vector<std::string> ExecutorConfig::validate() const {
  std::vector<std::string> faults;
  const auto need = [&](bool fine, std::string fault) {
    if (!fine) faults.push_back(std::move(fault));
  };
  std::error_code ignored;
  need(!model.empty(), "model: no folder given");
  need(model.empty() || std::filesystem::exists(model, ignored),
       fmt::format("model: {} does not exist", model.string()));
  need(threads >= 0 && threads <= 1024, fmt::format("threads: {} is not in 0 ... 1024", threads));
  need(device_memory > 0, "device_memory: must be more than 0");
  need(page_bytes == 0 || (page_bytes % 4096 == 0),
       fmt::format("page_bytes: {} is not a multiple of 4096", page_bytes));
  need(block_size >= 1 && block_size <= 4096,
       fmt::format("block_size: {} is not in 1 ... 4096", block_size));
  need(max_offload_ratio >= 0 && max_offload_ratio <= 100,
       fmt::format("max_offload_ratio: {} is not in 0 ... 100 percent", max_offload_ratio));
  need(increment_groups >= 1, fmt::format("increment_groups: {} is less than 1", increment_groups));
  need(kv_offloading_file.empty() || kv_offloading_size > 0,
       "kv_offloading_file: needs kv_offloading_size");
  need(max_num_batched_tokens >= 1,
       fmt::format("max_num_batched_tokens: {} is less than 1", max_num_batched_tokens));
  need(max_num_seqs >= 1, fmt::format("max_num_seqs: {} is less than 1", max_num_seqs));
  need(expert_count_interval >= 0,
       fmt::format("expert_count_interval: {} is negative", expert_count_interval));
  return faults;
}

void ExecutorConfig::check() const {
  std::string all;
  for (const std::string& fault : validate()) all += (all.empty() ? "" : "; ") + fault;
  if (!all.empty()) throw Error(all);
}

}  // namespace vamp
