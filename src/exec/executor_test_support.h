// What the executor's tests share: the golden checkpoints as tiny models, and the plain way to run
// them.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "exec/cpu_executor.h"
#include "exec/random_schedule.h"

namespace vamp::test {

// A golden checkpoint on one thread in f32, blocks of 4 tokens, all experts resident and
// `pool_blocks` in the base pool; up to `offload` percent of each layer's experts may go.
inline ExecutorConfig golden_config(const std::string& name, double offload, int pool_blocks = 64) {
  ExecutorConfig config;
  config.model = std::string(VAMP_SOURCE_DIR) + "/tests/golden/" + name;
  config.dtype = ComputeDType::kF32;
  config.threads = 1;
  config.block_size = 4;
  config.max_offload_ratio = offload;
  config.max_num_batched_tokens = 256;
  config.max_num_seqs = 16;
  config.expert_count_interval = 8;
  config.device_memory = kGiB;
  const MemoryLayout roomy =
      plan_memory(config, load_model_config(config.model), *make_ops(config));
  config.device_memory -= roomy.base_pool_bytes - pool_blocks * roomy.block_bytes;
  return config;
}

using Tokens = std::map<RequestId, std::vector<TokenId>>;

// `count` prompts of 1 ... 60 tokens; most begin alike.
inline Tokens make_prompts(int count, int vocab, uint64_t seed) {
  Random random(seed);
  const auto token = [&] { return static_cast<TokenId>(random.below(vocab)); };
  std::vector<TokenId> common(40);
  for (TokenId& t : common) t = token();
  Tokens prompts;
  for (int id = 0; id < count; ++id) {
    std::vector<TokenId>& prompt = prompts[id];
    if (random.chance(0.7)) prompt.assign(common.begin(), common.begin() + random.between(1, 40));
    for (int64_t i = random.between(1, 20); i > 0; --i) prompt.push_back(token());
  }
  return prompts;
}

// Every third request samples, with a seed of its own; the others are greedy.
inline SamplingParams make_sampling(RequestId id, int max_tokens) {
  SamplingParams sampling;
  sampling.max_tokens = max_tokens;
  if (id % 3 == 1) {
    sampling.temperature = 0.8f;
    sampling.top_p = 0.95f;
    sampling.repetition_penalty = 1.1f;
    sampling.seed = 1000 + id;
  }
  return sampling;
}

inline void add_all(RandomSchedule& schedule, const Tokens& prompts, int max_tokens) {
  for (const auto& [id, prompt] : prompts) schedule.add(id, prompt, make_sampling(id, max_tokens));
}

// One request after the other, whole prompts, no moves.
inline Tokens run_plainly(const ExecutorConfig& config, const Tokens& prompts, int max_tokens) {
  RealClock clock;
  CpuExecutor executor(config, clock);
  ScheduleOptions options;
  options.max_running = 1;
  options.whole_chunks = true;
  options.work = 1;
  options.preempt = options.move_boundary = options.move_block = options.copy = 0;
  options.reuse_prefixes = false;
  RandomSchedule schedule(executor, executor.layout(), options, 0);
  add_all(schedule, prompts, max_tokens);
  return schedule.run();
}

inline StartRequest start_request(RequestSlot slot, std::vector<TokenId> tokens,
                                  std::vector<BlockId> blocks) {
  StartRequest start;
  start.slot = slot;
  start.id = static_cast<RequestId>(slot);
  start.prompt_tokens = static_cast<int>(tokens.size());
  start.tokens = std::move(tokens);
  start.blocks = std::move(blocks);
  return start;
}

// One request in slot 0 with all of its prompt.
inline StepPlan single(StepId step, std::vector<TokenId> tokens, std::vector<BlockId> blocks) {
  StepPlan plan;
  plan.step = step;
  plan.batch = {{0, 0, static_cast<int>(tokens.size()), true, {}}};
  plan.start = {start_request(0, std::move(tokens), std::move(blocks))};
  return plan;
}

}  // namespace vamp::test
