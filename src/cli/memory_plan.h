// What `vamp inspect` shows: a model's memory on one GPU, from its config.json alone.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/gpu_presets.h"
#include "model/memory_layout.h"

namespace vamp {

struct MemoryPlanOptions {
  int tensor_parallel = 1;
  size_t page_bytes = 2 * kMiB;
  int block_tokens = 16;
  int increment_groups = 4;
  size_t device_bytes = 0;  // budget of one GPU; 0: not known, no KV pool is shown
  size_t reserve_bytes = 0;
  std::vector<double> ratios;  // percent
};

// What VAMP-r gives. Bytes are of one GPU, gains as in the paper: before the banks, which come out
// of the pool, and with experts a layer rounded down to a multiple of 4.
struct RatioPlan {
  double percent = 0;
  int experts_per_layer = 0;
  int groups_per_layer = 0;
  int groups = 0;                 // over all layers but the first, which stays
  int increments = 0;             // the last may be a partial one,
  int last_increment_groups = 0;  // of this many groups
  size_t gained_bytes = 0;
  size_t gained_bytes_unrounded = 0;
  size_t bank_bytes = 0;
};

struct MemoryPlan {
  MemoryPlanOptions options;
  ExpertGeometry experts;
  size_t dense_weight_bytes = 0;
  size_t kv_bytes_per_token = 0;
  size_t block_bytes = 0;
  size_t recurrent_state_bytes = 0;  // a sequence
  // Only with a budget:
  std::optional<size_t> kv_pool_bytes;
  int missing_groups = 0;            // the weights exceed the budget by as many
  std::optional<int> least_percent;  // then: the least whole VAMP-r that makes them fit
  std::vector<RatioPlan> ratios;
};

// Throws Error when the model cannot be cut or can never fit.
MemoryPlan make_memory_plan(const ModelConfig& model, const MemoryPlanOptions& options);

nlohmann::ordered_json plan_json(const MemoryPlan& plan);
std::string plan_table(const MemoryPlan& plan);

}  // namespace vamp
