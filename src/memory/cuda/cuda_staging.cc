#include "memory/cuda/cuda_staging.h"

namespace vamp {

CudaStaging::CudaStaging(const HbmPartition& partition, const PinnedExperts& source)
    : partition_(partition),
      source_(source),
      layers_(static_cast<size_t>(partition.layout().moe_layers)) {}

void CudaStaging::begin_region(int moe_layer) {
  if (partition_.experts().experts_out(moe_layer) == 0) return;
  Layer& layer = layers_[moe_layer];
  VAMP_CHECK(layer.state == State::kIdle, "MoE layer {} is staged already", moe_layer);
  layer.state = State::kQueued;
  queue_.push_back(moe_layer);
  issue_queued();
}

void CudaStaging::issue_queued() {
  while (!queue_.empty() && !bank_in_use_[queue_.front() % 2]) {
    issue(queue_.front());
    queue_.pop_front();
  }
}

void CudaStaging::issue(int moe_layer) {
  const ExpertStore& experts = partition_.experts();
  const MemoryLayout& layout = partition_.layout();
  Layer& layer = layers_[moe_layer];
  const int first = experts.first_given_up_expert(moe_layer);
  const auto count = static_cast<size_t>(experts.experts_out(moe_layer));
  const size_t gate_up = count * layout.gate_up_shard_bytes, down = count * layout.down_shard_bytes;
  const auto copy = [&](std::byte* to, const std::byte* from, size_t bytes) {
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, copies_.get()),
               "staging experts");
  };
  bank_free_[moe_layer % 2].order(copies_.get());
  layer.start.record(copies_.get());
  copy(experts.gate_up(moe_layer) + static_cast<size_t>(first) * layout.gate_up_shard_bytes,
       source_.gate_up(moe_layer, first), gate_up);
  layer.gate_up_ready.record(copies_.get());
  copy(experts.down(moe_layer) + static_cast<size_t>(first) * layout.down_shard_bytes,
       source_.down(moe_layer, first), down);
  layer.end.record(copies_.get());
  layer.bytes = gate_up + down;
  layer.state = State::kCopying;
  bank_in_use_[moe_layer % 2] = true;
}

void CudaStaging::wait_gate_up(int moe_layer, cudaStream_t stream) {
  Layer& layer = layers_[moe_layer];
  if (layer.state == State::kIdle) return;
  VAMP_CHECK(layer.state == State::kCopying, "MoE layer {} waits for a bank that is in use",
             moe_layer);
  layer.before_gate_up[0].record(stream);
  layer.gate_up_ready.order(stream);
  layer.before_gate_up[1].record(stream);
  layer.timed_gate_up = true;
}

void CudaStaging::wait(int moe_layer, cudaStream_t stream) {
  Layer& layer = layers_[moe_layer];
  if (layer.state == State::kIdle) return;
  VAMP_CHECK(layer.state == State::kCopying, "MoE layer {} waits for a bank that is in use",
             moe_layer);
  layer.before_all[0].record(stream);
  layer.end.order(stream);
  layer.before_all[1].record(stream);
  layer.timed_all = true;
}

void CudaStaging::release(int moe_layer, cudaStream_t stream) {
  Layer& layer = layers_[moe_layer];
  if (layer.state == State::kIdle) return;
  VAMP_CHECK(layer.state == State::kCopying && layer.timed_all,
             "MoE layer {} is released before it was waited for", moe_layer);
  bank_free_[moe_layer % 2].record(stream);
  bank_in_use_[moe_layer % 2] = false;
  layer.state = State::kIdle;
  issue_queued();
}

CudaStagingCounters CudaStaging::end_step() {
  CudaStagingCounters counters;
  for (size_t m = 0; m < layers_.size(); ++m) {
    Layer& layer = layers_[m];
    VAMP_CHECK(layer.state == State::kIdle, "MoE layer {} is still staged at the step's end", m);
    if (!layer.timed_all) continue;
    counters.staged_bytes += layer.bytes;
    counters.copy += layer.start.micros_to(layer.end);
    counters.stall += layer.before_all[0].micros_to(layer.before_all[1]);
    if (layer.timed_gate_up)
      counters.stall += layer.before_gate_up[0].micros_to(layer.before_gate_up[1]);
    layer.timed_all = layer.timed_gate_up = false;
  }
  return counters;
}

}  // namespace vamp
