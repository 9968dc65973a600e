// What the layer benchmarks' steps share: sequences of a step and their block tables, and the
// routed experts of a layer with all that they write.
#pragma once

#include <array>
#include <numeric>
#include <vector>

#include "gpu/gpu_bench.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/fused_decode.h"
#include "kernels/cuda/moe_grouped.h"
#include "kernels/cuda/moe_routing.h"
#include "kernels/cuda/moe_skinny.h"
#include "kernels/cuda/norm.h"

namespace vamp::cuda {

inline constexpr double kHbmBytesPerUs = 4.56e6;  // measured: what reading alone reaches
inline constexpr int kBlockTokens = 16;

// Sequences of equal context that all take `fresh` new tokens, the last of their context. Blocks
// lie in no order.
class StepBatch {
 public:
  StepBatch() = default;
  StepBatch(int sequences, int fresh, int context)
      : sequences_(sequences), fresh_(fresh), context_(context) {
    const int blocks = (context + kBlockTokens - 1) / kBlockTokens, all = sequences * blocks;
    std::vector<int> ids(static_cast<size_t>(all)), slots;
    for (int i = 0; i < all; ++i)
      ids[static_cast<size_t>(i)] = static_cast<int>(uint64_t(i) * 7919 % uint64_t(all));
    for (int s = 0; s <= sequences; ++s) {
      query_start_h_.push_back(s * fresh);
      block_start_h_.push_back(s * blocks);
    }
    for (int s = 0; s < sequences; ++s) {
      for (int p = context - fresh; p < context; ++p)
        slots.push_back(ids[static_cast<size_t>(s * blocks + p / kBlockTokens)] * kBlockTokens +
                        p % kBlockTokens);
    }
    contexts_h_.assign(static_cast<size_t>(sequences), context);
    last_ = DeviceBuffer<int>(
        std::vector<int>(static_cast<size_t>(sequences), (context - 1) % kBlockTokens + 1));
    contexts_ = DeviceBuffer<int>(contexts_h_);
    query_start_ = DeviceBuffer<int>(query_start_h_);
    block_start_ = DeviceBuffer<int>(block_start_h_);
    ids_ = DeviceBuffer<int>(ids);
    slots_ = DeviceBuffer<int>(slots);
    sequence_numbers_.resize(static_cast<size_t>(sequences));
    std::iota(sequence_numbers_.begin(), sequence_numbers_.end(), 0);
    numbers_ = DeviceBuffer<int>(sequence_numbers_);
    starts_ = DeviceBuffer<int>(std::vector<int>(static_cast<size_t>(sequences), context == fresh));
  }

  int sequences() const { return sequences_; }
  int tokens() const { return sequences_ * fresh_; }
  int context() const { return context_; }
  bool decode() const { return fresh_ == 1; }
  const int32_t* slots() const { return slots_.get(); }  // of each token in the cache
  const int32_t* query_start() const { return query_start_.get(); }
  const int32_t* numbers() const { return numbers_.get(); }  // 0, 1, 2 ...
  const int32_t* starts() const { return starts_.get(); }    // 1: without a context
  DecodeBatch decode_batch() const {
    return {sequences_, contexts_.get(), block_start_.get(), ids_.get()};
  }
  FusedBatch fused_batch(const float* cos_sin, const KvCache& cache) const {
    FusedBatch batch;
    batch.attention = decode_batch();
    batch.kv_slots = slots();
    batch.cos_sin = cos_sin;
    batch.cache = cache;
    batch.slots = numbers();
    batch.starts = starts();
    return batch;
  }
  AttentionBatch attention_batch() const {
    return {sequences_,
            tokens(),
            query_start_h_.data(),
            block_start_h_.data(),
            query_start_.get(),
            block_start_.get(),
            ids_.get(),
            last_.get(),
            contexts_h_.data(),
            /*dense=*/true};
  }

 private:
  int sequences_ = 0, fresh_ = 0, context_ = 0;
  DeviceBuffer<int> contexts_, query_start_, block_start_, ids_, slots_, last_, numbers_, starts_;
  std::vector<int> query_start_h_, block_start_h_, contexts_h_, sequence_numbers_;
};

enum class ExpertKernels { kBest, kSkinny, kGrouped };

// The routed experts of a layer: routing, products, weighted sum with the next norm.
class MoeBlock {
 public:
  // Each layer routes by logits of independent normal values, other ones in each: those that random
  // weights give grow alike from layer to layer. `skew`: added to expert e's logits is -skew * ln(e
  // + 1), so that few experts get most tokens.
  MoeBlock(const MoeShape& shape, int max_tokens, int layers, float skew = 0, bool shared = false)
      : shape_(shape), shared_(shared) {
    const auto E = static_cast<size_t>(shape.experts), K = static_cast<size_t>(shape.top_k),
               T = static_cast<size_t>(max_tokens), H = static_cast<size_t>(shape.hidden);
    logits_ = DeviceBuffer<float>((T + static_cast<size_t>(layers) * 128) * E);
    fill_normal_f32(logits_.get(), logits_.size(), 1.0f, 5);
    if (skew != 0) {
      std::vector<float> logits = logits_.to_host();
      for (size_t i = 0; i < logits.size(); ++i)
        logits[i] -= skew * std::log(static_cast<float>(i % E + 1));
      logits_ = DeviceBuffer<float>(logits);
    }
    ints_ = DeviceBuffer<int>(2 * T * K + 2 * E + 3);
    progress_ = DeviceBuffer<int>(std::vector<int>(moe_progress_size(shape.experts)));
    weights_ = DeviceBuffer<float>(T * K);
    work_ = DeviceBuffer<WorkItem>(static_cast<size_t>(max_work_items(max_tokens, shape)));
    activation_ = DeviceBuffer<__nv_bfloat16>(T * K * static_cast<size_t>(shape.intermediate));
    y_ = DeviceBuffer<__nv_bfloat16>(T * K * H);
    y32_ = DeviceBuffer<float>(size_t{256} * K * H);
    routing_.experts = ints_.get();
    routing_.pairs = routing_.experts + T * K;
    routing_.expert_start = routing_.pairs + T * K;
    routing_.num_work = routing_.expert_start + E + 1;
    routing_.work_start = routing_.num_work + 1;
    routing_.weights = weights_.get();
    routing_.work = work_.get();
    routing_.progress = progress_.get();
  }

  const float* logits(int layer) const {
    return logits_.get() + static_cast<size_t>(layer) * 128 * static_cast<size_t>(shape_.experts);
  }
  void route(int layer, int tokens, cudaStream_t s) {
    cuda::route(logits(layer), routing_, tokens, shape_.experts, shape_.top_k, true, s, shared_);
  }
  bool grouped(int tokens) const {
    return kernels == ExpertKernels::kBest ? moe_takes_grouped(tokens, shape_)
                                           : kernels == ExpertKernels::kGrouped;
  }
  // `in_place`: as in moe_grouped_experts.
  void experts(const __nv_bfloat16* x, int tokens, const MoeWeights& w, cudaStream_t s,
               ExpertPart part = {}, bool in_place = false) {
    if (grouped(tokens)) {
      moe_grouped_experts(x, tokens, shape_, w, routing_, activation_.get(), y_.get(), s, part,
                          in_place);
    } else {
      moe_skinny_gate_up(x, tokens, shape_, w, routing_, activation_.get(), s, part);
      moe_skinny_down(activation_.get(), tokens, shape_, w, routing_, y32_.get(), s, part);
    }
  }
  void combine(int tokens, __nv_bfloat16* residual, const NormWeight& norm, __nv_bfloat16* x,
               cudaStream_t s) {
    if (grouped(tokens))
      moe_grouped_combine_rms_norm(y_.get(), tokens, shape_, routing_, residual, norm, x, s);
    else
      moe_combine_rms_norm(y32_.get(), tokens, shape_, routing_, residual, norm, x, s);
  }
  // Experts that some token of the last routing chose.
  double active() const {
    std::vector<int> start(static_cast<size_t>(shape_.experts) + 1);
    check(cudaMemcpy(start.data(), routing_.expert_start, start.size() * 4, cudaMemcpyDeviceToHost),
          "copy");
    double active = 0;
    for (size_t e = 0; e + 1 < start.size(); ++e) active += start[e + 1] > start[e];
    return active;
  }
  const MoeShape& shape() const { return shape_; }
  const Routing& routing() const { return routing_; }

  ExpertKernels kernels = ExpertKernels::kBest;

 private:
  MoeShape shape_;
  bool shared_;
  DeviceBuffer<float> logits_, weights_, y32_;
  DeviceBuffer<int> ints_, progress_;
  DeviceBuffer<WorkItem> work_;
  DeviceBuffer<__nv_bfloat16> activation_, y_;
  Routing routing_;
};

}  // namespace vamp::cuda
