// All that the CPU executor can be told, with its defaults.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "base/units.h"
#include "core/step_plan.h"
#include "model/checkpoint.h"
#include "model/memory_layout.h"

namespace vamp {

// What activations and KV are kept in. Weights stay as the checkpoint has them, and sums are f32,
// in any case.
enum class ComputeDType {
  kAuto,  // bfloat16 where the processor multiplies it, else float32
  kBf16,
  kF32,
};

struct ExecutorConfig {
  std::filesystem::path model;  // Hugging Face folder
  LoadFormat load_format = LoadFormat::kSafetensors;
  uint64_t dummy_seed = 0;  // of LoadFormat::kDummy, which needs only config.json
  ComputeDType dtype = ComputeDType::kAuto;
  int threads = 0;  // that compute, the worker included; 0: one for each processor

  // All memory that counts as the device's: dense weights, resident experts, staging banks, KV pool
  // and activations. What is copied from (checkpoint, host tier) lies outside.
  size_t device_memory = 2 * kGiB;
  size_t page_bytes =
      0;                // unit of the boundary; 0: 2 MiB, or less where a layer's experts are small
  int block_size = 16;  // tokens of a KV block
  double max_offload_ratio = 0;     // percent of a layer's experts that may be given up (VAMP-r)
  int increment_groups = 4;         // the boundary moves by so many expert groups
  bool round_to_increment = false;  // the paper's rounding of max_offload_ratio
  size_t min_pool = 0;              // the KV pool holds at least this from the start; 0: one block

  size_t kv_offloading_size = 0;             // host tier of the KV cache; 0: none
  std::filesystem::path kv_offloading_file;  // back it by this file, not by memory; empty: memory

  int max_num_batched_tokens = 2048;  // rows of one step: activations are sized by it
  int max_num_seqs = 128;             // running requests at most
  StagingMode staging = StagingMode::kAuto;
  int expert_count_interval = 32;  // steps between reports of tokens by expert; 0: never

  // Every fault at once, each a sentence naming the field and the way out; empty: none.
  std::vector<std::string> validate() const;
  // Throws Error listing validate()'s faults, if any.
  void check() const;
};

}  // namespace vamp
