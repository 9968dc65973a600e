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
  Layer& layer = layers_[moe_layer];
  const int first = experts.first_given_up_expert(moe_layer);
  layer.bytes =
      static_cast<size_t>(experts.experts_out(moe_layer)) * partition_.layout().shard_bytes();
  bank_free_[moe_layer % 2].order(copies_.get());
  layer.start.record(copies_.get());
  check_cuda(cudaMemcpyAsync(experts.expert(moe_layer, first), source_.expert(moe_layer, first),
                             layer.bytes, cudaMemcpyHostToDevice, copies_.get()),
             "staging experts");
  layer.end.record(copies_.get());
  layer.state = State::kCopying;
  bank_in_use_[moe_layer % 2] = true;
}

void CudaStaging::wait(int moe_layer, cudaStream_t stream) {
  Layer& layer = layers_[moe_layer];
  if (layer.state == State::kIdle) return;
  VAMP_CHECK(layer.state == State::kCopying, "MoE layer {} waits for a bank that is in use",
             moe_layer);
  layer.wait_start.record(stream);
  layer.end.order(stream);
  layer.wait_end.record(stream);
  layer.waited = true;
}

void CudaStaging::release(int moe_layer, cudaStream_t stream) {
  Layer& layer = layers_[moe_layer];
  if (layer.state == State::kIdle) return;
  VAMP_CHECK(layer.state == State::kCopying && layer.waited,
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
    if (!layer.waited) continue;
    counters.staged_bytes += layer.bytes;
    counters.copy += layer.start.micros_to(layer.end);
    counters.stall += layer.wait_start.micros_to(layer.wait_end);
    layer.waited = false;
  }
  return counters;
}

}  // namespace vamp
