// MoE layers over an expert store whose tail may have been given up.
#pragma once

#include <vector>

#include "core/step_plan.h"
#include "exec/aligned_buffer.h"
#include "kernels/ops.h"
#include "memory/hbm_partition.h"
#include "memory/staging.h"

namespace vamp {

// Routes, brings given-up experts back, multiplies and adds up. Tokens don't depend on the boundary
// or the mode: each expert's product is kept by itself, and they are summed in the router's order.
//
// Owns the staging and the buffers of one step. The executor's worker thread only.
class MoeExecutor {
 public:
  // All references must outlive it.
  MoeExecutor(const ModelConfig& model, const HbmPartition& partition, const HostExperts& source,
              const Clock& clock, Ops& ops, int max_tokens);

  static size_t buffer_bytes(const ModelConfig& model, const Ops& ops, int max_tokens);

  // kWholeRegion: the copies of all layers are queued now. kActivated: each layer asks for what its
  // tokens chose.
  void begin_step(StagingMode mode);
  // residual += MoE(x). x: activations [tokens, hidden].
  void run(int moe_layer, const WeightMatrix& router, const void* x, int tokens, void* residual);
  StagingStats end_step();
  // After an Error in the middle of a step.
  void abandon();

  // Distinct experts chosen in the step that ended last, by MoE layer, and their mean.
  const std::vector<uint16_t>& experts_by_layer() const { return experts_by_layer_; }
  float experts_per_layer() const;
  // Tokens that chose each expert since the last call, [moe_layer * experts + expert].
  std::vector<uint32_t> take_counts();

 private:
  void route(const WeightMatrix& router, const void* x, int tokens);
  void sort_chosen(int moe_layer);

  const ModelConfig& model_;
  const HbmPartition& partition_;
  Ops& ops_;
  MoeShape shape_;
  Staging staging_;
  StagingMode mode_ = StagingMode::kActivated;

  AlignedBuffer logits_, experts_, weights_, expert_start_, pairs_, workspace_;
  MoeRouting routing_;
  std::vector<int32_t> resident_, given_up_;  // experts that some token of this layer chose
  std::vector<uint32_t> counts_;
  size_t activated_bytes_ = 0;
  std::vector<uint16_t> experts_by_layer_;
};

}  // namespace vamp
