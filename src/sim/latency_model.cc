#include "sim/latency_model.h"

#include <algorithm>

namespace vamp {
namespace {

// Weights of one layer's attention projections on one rank, mean over the layers.
double projection_weights(const ModelConfig& model, double tp) {
  double total = 0;
  for (const LayerConfig& layer : model.layers) {
    double width = 0;  // of all projections together
    if (layer.attention == AttentionKind::kFull) {
      const double q = static_cast<double>(model.num_heads) * model.head_dim;
      const double kv = static_cast<double>(model.num_kv_heads) * model.head_dim;
      width = q * (model.attention_output_gate ? 3 : 2) + 2 * kv;
    } else {
      const double k = static_cast<double>(model.linear_num_key_heads) * model.linear_key_head_dim;
      const double v =
          static_cast<double>(model.linear_num_value_heads) * model.linear_value_head_dim;
      width = 2 * k + 3 * v;  // q, k, v, z in, o out
    }
    total += width * model.hidden_size;
  }
  return total / static_cast<double>(model.layers.size()) / tp;
}

}  // namespace

LatencyModel::LatencyModel(const ModelConfig& model, const MemoryLayout& layout,
                           const MachineProfile& machine, const RoutingConfig& routing)
    : layout_(layout),
      machine_(machine),
      routing_(routing, model.num_experts, model.experts_per_token),
      layers_(model.num_layers()),
      moe_layers_(model.num_moe_layers()),
      dense_layers_(layers_ - moe_layers_),
      full_layers_(model.num_full_attention_layers()),
      experts_per_token_(model.experts_per_token),
      hidden_(model.hidden_size) {
  const double tp = layout.tensor_parallel;
  projection_weights_ = projection_weights(model, tp);
  expert_weights_ = 3.0 * hidden_ * model.moe_intermediate_size / tp;
  shared_weights_ =
      hidden_ * (3.0 * model.shared_expert_intermediate_size / tp + model.num_experts);
  dense_mlp_weights_ = 3.0 * hidden_ * model.dense_intermediate_size / tp;
  head_weights_ = hidden_ * model.vocab_size / tp;
  pair_operations_ = 4.0 * model.num_heads * model.head_dim / tp;
  weight_bytes_ = static_cast<double>(dtype_bytes(model.dtype));
  state_bytes_ = static_cast<double>(layout.recurrent_state_bytes);
  shard_bytes_ = static_cast<double>(layout.shard_bytes());
}

Micros LatencyModel::roofline(double bytes, double operations) const {
  return std::max(bytes / (machine_.memory_gbps * 1e3), operations / (machine_.dense_tflops * 1e6));
}

LatencyModel::LayerTimes LatencyModel::layer_times(const StepShape& shape, double distinct) const {
  const double tokens = shape.tokens();
  const double memory = machine_.memory_gbps * 1e3;
  LayerTimes times;
  times.attention = machine_.layer_overhead +
                    roofline(projection_weights_ * weight_bytes_, 2 * tokens * projection_weights_);
  // KV and states are read by all layers together; attention of prefill is bound by compute.
  const double kv_bytes = (shape.decode_context + shape.prefill_context) *
                          static_cast<double>(layout_.kv_bytes_per_token);
  const double state = 2.0 * shape.sequences * state_bytes_;
  const double pairs = pair_operations_ * shape.prefill_pairs / (machine_.attention_tflops * 1e6);
  times.attention += (kv_bytes + state) / memory / layers_ + pairs * full_layers_ / layers_;
  if (layout_.tensor_parallel > 1) {
    times.attention += 2 * (machine_.all_reduce_latency +
                            tokens * hidden_ * weight_bytes_ / (machine_.all_reduce_gbps * 1e3));
  }
  times.moe = roofline(distinct * expert_weights_ * weight_bytes_,
                       2 * tokens * experts_per_token_ * expert_weights_) +
              roofline(shared_weights_ * weight_bytes_, 2 * tokens * shared_weights_);
  times.other =
      machine_.step_overhead +
      roofline(head_weights_ * weight_bytes_, 2.0 * shape.sampled * head_weights_) +
      dense_layers_ * roofline(dense_mlp_weights_ * weight_bytes_, 2 * tokens * dense_mlp_weights_);
  return times;
}

void LatencyModel::set_boundary(int groups_out) {
  if (groups_out == boundary_) return;
  boundary_ = groups_out;
  out_by_layer_.resize(moe_layers_);
  for (int l = 0; l < moe_layers_; ++l) out_by_layer_[l] = layout_.groups_out(groups_out, l);
}

StagingStats LatencyModel::stage_activated(const LayerTimes& times, double tokens,
                                           double distinct) const {
  StagingStats stats;
  stats.used = StagingMode::kActivated;
  double bytes = 0;
  for (const int out : out_by_layer_) {
    if (out == 0) continue;
    const int tail = std::min(out * layout_.shards_per_group, routing_.experts());
    const double chosen = routing_.distinct(tokens, tail);
    const Micros gather = chosen * shard_bytes_ / (machine_.gather_gbps * 1e3);
    // The resident experts' products run meanwhile, and both take longer.
    const Micros resident = times.moe * (1 - chosen / distinct);
    stats.stall += std::max(0.0, gather - machine_.gather_hidden * resident);
    bytes += chosen * shard_bytes_;
  }
  stats.staged_bytes = stats.activated_bytes = static_cast<size_t>(bytes);
  return stats;
}

StagingStats LatencyModel::stage_whole(const LayerTimes& times, double tokens) const {
  StagingStats stats;
  stats.used = StagingMode::kWholeRegion;
  const double rate = machine_.link_up_gbps * 1e3;
  double bytes = 0, chosen = 0;
  Micros now = 0;     // the compute stream
  Micros copied = 0;  // the copy engine
  // Of the layer before: its copy's bank is free then, and the next may start.
  Micros moe_start = 0;
  for (const int out : out_by_layer_) {
    now += times.attention;
    const double region = static_cast<double>(out) * static_cast<double>(layout_.group_bytes());
    if (out > 0) copied = std::max(moe_start, copied) + region / rate;
    moe_start = out > 0 ? std::max(now, copied) : now;
    stats.stall += moe_start - now;
    now = moe_start + times.moe;
    if (out == 0) continue;
    bytes += region;
    chosen += shard_bytes_ * routing_.distinct(tokens, std::min(out * layout_.shards_per_group,
                                                                routing_.experts()));
  }
  stats.staged_bytes = static_cast<size_t>(bytes);
  stats.activated_bytes = static_cast<size_t>(chosen);
  return stats;
}

StepTime LatencyModel::step(const StepShape& shape, int groups_out, StagingMode mode) {
  set_boundary(groups_out);
  const double tokens = shape.tokens();
  StepTime result;
  if (tokens == 0) return result;
  const double distinct = routing_.distinct(tokens);
  const LayerTimes times = layer_times(shape, distinct);
  result.experts_per_layer = distinct;
  result.total = times.other + layers_ * times.attention + moe_layers_ * times.moe;
  if (groups_out > 0) {
    StagingStats stats;
    if (mode != StagingMode::kWholeRegion) stats = stage_activated(times, tokens, distinct);
    if (mode != StagingMode::kActivated) {
      const StagingStats whole = stage_whole(times, tokens);
      if (mode == StagingMode::kWholeRegion || whole.stall < stats.stall) stats = whole;
    }
    result.staging = stats;
    result.total += stats.stall;
    const double rate =
        stats.used == StagingMode::kWholeRegion ? machine_.link_up_gbps : machine_.gather_gbps;
    result.link_busy =
        std::min(result.total, static_cast<double>(stats.staged_bytes) / (rate * 1e3));
  }
  return result;
}

Micros LatencyModel::boundary_move(int groups, int restored) const {
  return groups * machine_.handle_move +
         restored * static_cast<double>(layout_.group_bytes()) / (machine_.link_up_gbps * 1e3);
}

}  // namespace vamp
