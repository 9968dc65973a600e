// A step of Qwen3-Next-80B-A3B but for embedding and sampling, on random weights: whole, or one of
// two tensor-parallel ranks' share (without the ranks' sums).
#pragma once

#include <memory>
#include <vector>

#include "gpu/step_batch.h"
#include "kernels/cuda/fused_decode.h"
#include "kernels/cuda/linear.h"
#include "kernels/gated_delta.h"

namespace vamp::cuda {

class Qwen3NextStep {
 public:
  static constexpr int kHidden = 2048, kVocab = 151936, kLayers = 48, kMaxTokens = 8192;
  static constexpr int kHeadDim = 256, kRotary = 64, kFullEvery = 4;

  enum Op {
    kInputOp,
    kDeltaOp,
    kRopeOp,
    kAttentionOp,
    kGateOp,
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

  // `own_experts`: layers with experts of their own; later ones use them again (all 48 layers' are
  // 144 GiB), which no cache holds either. `kv_tokens`, `max_sequences`: most that a batch may
  // have.
  Qwen3NextStep(int ranks, int own_experts, int kv_tokens, int max_sequences);

  void set_batch(int sequences, int fresh, int context);
  // All layers in one launch where it takes the batch; else op by op.
  bool fused = true;
  // The step, without the op `left_out` (to see what each adds), which makes it go op by op.
  void step(cudaStream_t s, Op left_out = kNone);
  // One op of a layer; nothing where a layer of its kind has none.
  void run(Op op, int layer, cudaStream_t s);
  // Bytes that a step must read or write: dense weights, the experts that its tokens choose (in the
  // last layer, which it routes once more), contexts, recurrent states.
  double bytes();
  int layers() const { return kLayers; }

 private:
  struct Layer {
    // full attention: q of all heads, k, v, gates of all heads; linear attention: as checkpoints
    // have it
    DeviceBuffer<__nv_bfloat16> in, out, router;
    DeviceBuffer<float> states;
    DeviceBuffer<__nv_bfloat16> conv_states;
  };
  struct Experts {
    DeviceBuffer<__nv_bfloat16> gate_up, down;
  };
  static bool is_full(int l) { return l % kFullEvery == kFullEvery - 1; }
  void attention(int l, cudaStream_t s);
  void linear_attention(int l, cudaStream_t s);
  void linear(const __nv_bfloat16* x, int rows, const DeviceBuffer<__nv_bfloat16>& w, int N, int K,
              LinearPart::Out kind, void* out, cudaStream_t s);
  // Of a layer's input product: queries' (and their gates'), keys' and a row.
  int query_width() const { return heads_ * kHeadDim; }
  int key_width() const { return kv_heads_ * kHeadDim; }
  int input_width(int l) const {
    return is_full(l) ? 2 * query_width() + 2 * key_width() : static_cast<int>(delta_.qkvz_row());
  }
  MoeWeights experts(int l) const;
  GatedDeltaWeights delta_weights() const {
    return {conv_.get(), a_log_.get(), dt_bias_.get(), delta_norm_.get(), 1e-6f};
  }
  void make_fused();
  NormWeight norm() const { return {norm_.get(), 1e-6f, true}; }

  int ranks_, heads_, kv_heads_;
  GatedDeltaShape delta_;
  MoeBlock moe_;
  std::vector<Layer> layers_;
  std::vector<Experts> experts_;
  KvCache cache_;
  DeviceBuffer<char> arena_, delta_scratch_;
  Linear linear_;
  Attention attention_op_;
  std::unique_ptr<FusedDecode> fused_;
  StepBatch batch_;
  DeviceBuffer<__nv_bfloat16> head_, residual_, x_, in_, mixed_, out_;
  DeviceBuffer<float> router_logits_, vocab_, norm_, cos_sin_, conv_, a_log_, dt_bias_, delta_norm_;
};

}  // namespace vamp::cuda
