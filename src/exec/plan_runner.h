// Carries out one plan after the other, on the CPU, in the order that core/step_plan.h lays down.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "core/step_plan.h"
#include "exec/executor_config.h"
#include "exec/host_tier_memory.h"
#include "exec/kv_copier.h"
#include "exec/loaded_model.h"
#include "exec/model_runner.h"
#include "exec/moe_executor.h"
#include "exec/request_table.h"
#include "exec/staging_chooser.h"
#include "exec/step_batch.h"
#include "memory/hbm_partition.h"

namespace vamp {

// The arena as the kernels see it. VAMP_CHECKs that both count a block's bytes alike.
KvCache kv_cache(const LoadedModel& model, const Ops& ops, const KvArena& arena);

// Owns everything of the device: the partition, the host tier, the running requests, the buffers.
// Used by one thread, CpuExecutor's worker. It never waits for the scheduler.
class PlanRunner {
 public:
  // `experts` is the host copy: the model's own, or one around it. All references must outlive
  // this. Throws Error when memory falls short.
  PlanRunner(const ExecutorConfig& config, const LoadedModel& model, const HostExperts& experts,
             VirtualMemory& memory, Ops& ops, const Clock& clock);

  // Never throws for a lost step: the result says so, and all plans are skipped until one with
  // `reset` comes. Throws when serving can't go on: a broken invariant, or memory in no known
  // state.
  StepResult run(const StepPlan& plan);

  const HbmPartition& partition() const { return partition_; }
  int host_blocks() const { return host_.blocks(); }

 private:
  void carry_out(const StepPlan& plan, StepResult& result);
  void lose(const StepPlan& plan, const std::string& why);
  void move_boundary(const BoundaryMove& move, StepResult& result);
  void move_partition(const PartitionTarget& target);
  void check_blocks(const StepPlan& plan) const;
  void move_blocks(const StepPlan& plan);
  void copy_block(BlockId from, BlockId to);
  void forward(const StepPlan& plan, StepResult& result);
  void sample(std::span<float> logits, StepResult& result);
  void report_copies(const StepPlan& plan, StepResult& result);
  StagingMode staging_mode(const StepPlan& plan, int tokens);

  const ExecutorConfig config_;
  const Clock& clock_;
  Ops& ops_;
  const int vocab_size_;
  HbmPartition partition_;
  KvCache cache_;
  HostTierMemory host_;
  KvCopier copier_;
  MoeExecutor moe_;
  ModelRunner runner_;
  RequestTable table_;
  StepBatch batch_;
  StagingChooser chooser_;
  std::vector<SampleParams> sample_params_;
  std::vector<Sample> samples_;
  std::string lost_;  // why plans are skipped; empty: they are not
  // Of the present plan, to take it back.
  std::optional<PartitionTarget> move_back_;
  bool blocks_moved_ = false;
  int steps_since_counts_ = 0;
};

}  // namespace vamp
