#include "exec/plan_runner.h"

#include <cstring>
#include <deque>

#include "base/error.h"

namespace vamp {
KvCache kv_cache(const LoadedModel& model, const Ops& ops, const KvArena& arena) {
  KvCache cache;
  cache.arena = arena.base();
  cache.layout.layers = model.config().num_full_attention_layers();
  cache.layout.kv_heads = model.config().num_kv_heads;
  cache.layout.head_dim = model.config().head_dim;
  cache.layout.block_tokens = model.layout().block_tokens;
  cache.layout.dtype = ops.types().activation;
  VAMP_CHECK(cache.layout.block_bytes() == model.layout().block_bytes,
             "KV blocks of {} bytes in the kernels, of {} in the layout",
             cache.layout.block_bytes(), model.layout().block_bytes);
  return cache;
}

PlanRunner::PlanRunner(const ExecutorConfig& config, const LoadedModel& model,
                       const HostExperts& experts, VirtualMemory& memory, Ops& ops,
                       const Clock& clock)
    : config_(config),
      clock_(clock),
      ops_(ops),
      vocab_size_(model.config().vocab_size),
      partition_(model.layout(), model.layout().min_groups_out, memory, experts),
      cache_(kv_cache(model, ops, partition_.kv())),
      host_(config.kv_offloading_size, model.layout().block_bytes, config.kv_offloading_file),
      copier_(partition_.kv(), model.layout().block_bytes, host_, clock),
      moe_(model.config(), partition_, experts, clock, ops, config.max_num_batched_tokens),
      runner_(model.config(), model.weights(), ops, moe_, runner_limits(config)),
      table_(model.config().vocab_size) {}

StepResult PlanRunner::run(const StepPlan& plan) {
  StepResult result;
  result.step = plan.step;
  result.start = clock_.now();
  if (plan.reset) lost_.clear();
  if (lost_.empty()) {
    try {
      carry_out(plan, result);
    } catch (const Error& error) {
      if (partition_.broken()) throw;
      lose(plan, error.what());
      const Micros start = result.start;
      result = StepResult{};
      result.step = plan.step;
      result.start = start;
    }
  }
  result.executed = lost_.empty();
  result.failure = lost_;
  report_copies(plan, result);
  result.end = clock_.now();
  return result;
}

void PlanRunner::carry_out(const StepPlan& plan, StepResult& result) {
  move_back_.reset();
  blocks_moved_ = false;
  table_.apply(plan);
  if (plan.boundary) move_boundary(*plan.boundary, result);
  check_blocks(plan);
  move_blocks(plan);
  blocks_moved_ = true;
  copier_.start(plan.step, plan.demote, plan.promote);
  batch_.build(plan, table_, cache_.layout.block_tokens);
  if (batch_.num_tokens() > 0) forward(plan, result);
}

// Nothing that the plan did may stay: to the scheduler it never happened.
void PlanRunner::lose(const StepPlan& plan, const std::string& why) {
  lost_ = why;
  moe_.abandon();
  copier_.cancel(plan.step);
  // Where blocks came from may have been written since, but where they went is theirs alone.
  for (size_t i = blocks_moved_ ? plan.move_blocks.size() : 0; i-- > 0;) {
    copy_block(plan.move_blocks[i].to, plan.move_blocks[i].from);
  }
  if (!move_back_) return;
  try {
    move_partition(*move_back_);
  } catch (const Error& error) {
    throw Error("step {} was lost ({}), and its boundary move could not be undone: {}", plan.step,
                why, error.what());
  }
}

void PlanRunner::move_boundary(const BoundaryMove& move, StepResult& result) {
  const Micros start = clock_.now();
  const int before = partition_.groups_out();
  move_partition({move.groups_out, move.order_version, move.map_slots, move.unmap_slots});
  move_back_ = {before, move.order_version, move.unmap_slots, move.map_slots};
  result.boundary_us = clock_.now() - start;
}

void PlanRunner::move_partition(const PartitionTarget& target) {
  // Blocks in flight lie elsewhere, but the driver's calls and the copies must not meet.
  copier_.pause();
  try {
    partition_.move(target);
  } catch (...) {
    copier_.resume();
    throw;
  }
  copier_.resume();
}

// A block that is a hole would kill the process at its first byte.
void PlanRunner::check_blocks(const StepPlan& plan) const {
  const auto check = [&](RequestSlot slot, BlockId block) {
    VAMP_CHECK(partition_.kv().block_mapped(block), "slot {} gets block {}, which is not mapped",
               slot, block);
  };
  for (const TableEdit& edit : plan.edit_tables) check(edit.slot, edit.block);
  for (const StartRequest& request : plan.start) {
    for (BlockId block : request.blocks) check(request.slot, block);
  }
  for (const BatchEntry& entry : plan.batch) {
    for (BlockId block : entry.new_blocks) check(entry.slot, block);
  }
}

void PlanRunner::move_blocks(const StepPlan& plan) {
  for (const BlockMove& move : plan.move_blocks) copy_block(move.from, move.to);
}

void PlanRunner::copy_block(BlockId from, BlockId to) {
  const KvArena& kv = partition_.kv();
  VAMP_CHECK(kv.block_mapped(from) && kv.block_mapped(to), "move of block {} to {}", from, to);
  std::memcpy(kv.block(to), kv.block(from), cache_.layout.block_bytes());
}

StagingMode PlanRunner::staging_mode(const StepPlan& plan, int tokens) {
  const StagingMode asked = plan.staging == StagingMode::kAuto ? config_.staging : plan.staging;
  if (asked != StagingMode::kAuto) return asked;
  // Nothing to stage: nothing to choose, and nothing to copy in the cheaper way to begin a step.
  if (partition_.groups_out() == 0) return StagingMode::kActivated;
  return chooser_.choose(tokens, partition_.groups_out());
}

void PlanRunner::forward(const StepPlan& plan, StepResult& result) {
  const Micros start = clock_.now();
  const StagingMode mode = staging_mode(plan, batch_.num_tokens());
  moe_.begin_step(mode);
  const std::span<float> logits = runner_.forward(batch_, cache_);
  result.staging = moe_.end_step();
  result.experts_per_layer = moe_.experts_per_layer();
  result.experts_by_layer = moe_.experts_by_layer();
  if (partition_.groups_out() > 0) {
    chooser_.observe(mode, batch_.num_tokens(), partition_.groups_out(), clock_.now() - start);
  }
  sample(logits, result);
  if (config_.expert_count_interval > 0 && ++steps_since_counts_ >= config_.expert_count_interval) {
    steps_since_counts_ = 0;
    result.expert_counts = moe_.take_counts();
  }
}

void PlanRunner::sample(std::span<float> logits, StepResult& result) {
  const std::vector<RequestSlot>& slots = batch_.sample_slots();
  const std::vector<TokenId>& known = batch_.known_tokens();
  const auto mask_words = (static_cast<size_t>(vocab_size_) + 31) / 32;
  std::deque<std::vector<uint32_t>> masks;
  sample_params_.clear();
  for (size_t i = 0; i < slots.size(); ++i) {
    RunningRequest& row = table_.row(slots[i]);
    sample_params_.push_back(known[i] == StepBatch::kSampled
                                 ? row.sample_params()
                                 : row.score_params(known[i], masks.emplace_back(mask_words, 0)));
  }
  samples_.assign(slots.size(), {});
  ops_.sample(logits.data(), static_cast<int>(slots.size()), vocab_size_, sample_params_, samples_);
  for (size_t i = 0; i < slots.size(); ++i) {
    RunningRequest& row = table_.row(slots[i]);
    SampledToken token;
    token.slot = slots[i];
    token.token = samples_[i].token;
    token.logprob = samples_[i].logprob;
    token.top_logprobs = std::move(samples_[i].top_logprobs);
    token.invalid = samples_[i].invalid || !row.valid;
    if (known[i] != StepBatch::kSampled) {
      result.scored.push_back(std::move(token));
      continue;
    }
    // The plan after this one may already count on a token: an invalid one is as good as any.
    if (token.invalid) {
      token.token = 0;
      row.valid = false;
    }
    row.append(token.token);
    result.tokens.push_back(std::move(token));
  }
}

void PlanRunner::report_copies(const StepPlan& plan, StepResult& result) {
  if (plan.await_copies) copier_.wait_for_one();
  KvCopier::Finished finished = copier_.take_finished();
  result.demoted = std::move(finished.demoted);
  result.promoted = std::move(finished.promoted);
  result.demote_us = finished.demote_us;
  result.promote_us = finished.promote_us;
}

}  // namespace vamp
