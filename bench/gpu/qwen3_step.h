// A step of Qwen3-30B-A3B but for embedding and sampling, on random weights: decode or prefill.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "gpu/step_batch.h"
#include "kernels/cuda/fused_decode.h"
#include "kernels/cuda/linear.h"
#include "memory/cuda/cuda_handles.h"

namespace vamp::cuda {

class Qwen3Step {
 public:
  static constexpr int kHidden = 2048, kVocab = 151936, kMaxTokens = 8192;
  static constexpr int kHeads = 32, kKvHeads = 4, kHeadDim = 128;
  static constexpr int kQkv = (kHeads + 2 * kKvHeads) * kHeadDim, kAttention = kHeads * kHeadDim;
  static constexpr MoeShape kMoe{128, 8, kHidden, 768};

  enum Op {
    kQkvOp,
    kRopeOp,
    kAttentionOp,
    kOutputOp,
    kNormOp,
    kRouterOp,
    kRouteOp,
    kExpertsOp,
    kCombineOp,
    kHeadOp,
    kNone
  };
  static const char* op_name(Op op);

  // `kv_tokens`: of all sequences together, most that a batch may have. `skew`: see MoeBlock.
  // `experts`: where a layer's lie; none: the step has its own.
  using Experts = std::function<MoeWeights(int layer)>;
  Qwen3Step(int layers, int kv_tokens, float skew = 0, Experts experts = {});

  void set_batch(int sequences, int fresh, int context);
  // A number of rows for single ops, whatever the batch.
  void set_tokens(int tokens) { tokens_ = tokens; }

  // All layers in one launch where it takes the batch; else op by op.
  bool fused = true;
  // The step, without the op `left_out` (to see what each adds). Capturable if the hooks are.
  void step(cudaStream_t s, Op left_out = kNone);
  // Called between a layer's routing and its experts' products, and after these.
  std::function<void(int layer, cudaStream_t s)> before_experts, after_experts;
  // Instead: a layer's experts from *first(layer) on are brought by `stage` on another stream while
  // the others' products run.
  struct Staged {
    std::function<const int32_t*(int layer)> first;
    std::function<void(int layer, cudaStream_t s)> stage;
  };
  Staged staged;
  // One op of a layer.
  void run(Op op, int layer, cudaStream_t s);

  // Bytes that a step must read: dense weights, the experts that its tokens choose (in the last
  // layer, which it routes once more), and the contexts.
  double bytes();
  int layers() const { return static_cast<int>(layers_.size()); }
  int tokens() const { return tokens_; }
  MoeBlock& moe() { return moe_; }

 private:
  struct Layer {
    DeviceBuffer<__nv_bfloat16> qkv, o, router, gate_up, down;
    Layer(uint64_t seed, bool own_experts);
  };
  MoeWeights experts(int l) const;
  const Layer& at(int l) const { return layers_[static_cast<size_t>(l)]; }
  NormWeight norm() const { return {norm_.get(), 1e-6f, false}; }
  LinearPart part(const DeviceBuffer<__nv_bfloat16>& w, int N, int K, LinearPart::Out kind,
                  void* out) const {
    return {{w.get(), DType::kBf16, N, K}, nullptr, out, N, kind};
  }
  LinearPart qkv_part(int l) const;
  LinearPart output_part(int l) const;
  LinearPart router_part(int l) const;
  LinearPart head_part() const;
  void tune();
  void run_staged_experts(int l, cudaStream_t s);
  void attention(int l, cudaStream_t s);
  void run_fused(cudaStream_t s);

  std::vector<Layer> layers_;
  Experts experts_;
  KvCache cache_;
  int kv_tokens_;
  DeviceBuffer<char> arena_;
  Linear linear_;
  Attention attention_op_{{kHeads, kKvHeads, kHeadDim}, kBlockTokens};
  MoeBlock moe_;
  std::unique_ptr<FusedDecode> fused_;
  StepBatch batch_;
  DeviceBuffer<__nv_bfloat16> head_, residual_, x_, qkv_, attention_;
  DeviceBuffer<float> router_logits_, vocab_, norm_, cos_sin_;
  int tokens_ = 0;
  CudaStream side_;
  CudaEvent routed_, arrived_;
};

}  // namespace vamp::cuda
