// How long does a step take? Roofline of a model on a machine: each part of a layer takes the
// longer of its bytes over the memory rate and its operations over the compute rate; given-up
// experts are copied in as an executor does it, whole-region behind the layer before or activated
// only, after routing.
#pragma once

#include <vector>

#include "core/step_plan.h"
#include "model/memory_layout.h"
#include "model/model_config.h"
#include "sim/machine_profile.h"
#include "sim/routing_model.h"

namespace vamp {

// The work of one step.
struct StepShape {
  int sequences = 0;
  int decode_requests = 0;
  double decode_context = 0;  // tokens of KV that they read
  int prefill_tokens = 0;
  double prefill_pairs = 0;    // sum over prefill tokens of the context they attend to
  double prefill_context = 0;  // tokens of KV that prefill chunks read
  int sampled = 0;             // rows of logits
  int tokens() const { return decode_requests + prefill_tokens; }
};

struct StepTime {
  Micros total = 0;      // staging's stall included
  Micros link_busy = 0;  // host to device, by staging
  double experts_per_layer = 0;
  StagingStats staging;
};

// Immutable apart from a cache of the boundary last asked for. One thread.
class LatencyModel {
 public:
  // `layout` must outlive this; per-rank sizes are taken from it.
  LatencyModel(const ModelConfig& model, const MemoryLayout& layout, const MachineProfile& machine,
               const RoutingConfig& routing);

  StepTime step(const StepShape& shape, int groups_out, StagingMode mode);
  // Moving `groups` groups; `restored` of them also come from the host.
  Micros boundary_move(int groups, int restored) const;

  const MachineProfile& machine() const { return machine_; }
  const RoutingModel& routing() const { return routing_; }

 private:
  struct LayerTimes {
    Micros attention = 0, moe = 0, other = 0;  // a layer's two halves; once a step
  };
  LayerTimes layer_times(const StepShape& shape, double distinct) const;
  Micros roofline(double bytes, double operations) const;
  // Stall and bytes of one step in either mode.
  StagingStats stage_activated(const LayerTimes& times, double tokens, double distinct) const;
  StagingStats stage_whole(const LayerTimes& times, double tokens) const;
  void set_boundary(int groups_out);

  const MemoryLayout& layout_;
  MachineProfile machine_;
  RoutingModel routing_;
  int layers_, moe_layers_, dense_layers_, full_layers_, experts_per_token_;
  double hidden_, projection_weights_, expert_weights_, shared_weights_, dense_mlp_weights_,
      head_weights_, pair_operations_, weight_bytes_, state_bytes_;
  double shard_bytes_;
  int boundary_ = -1;
  std::vector<int> out_by_layer_;  // groups given up, at boundary_
};

}  // namespace vamp
