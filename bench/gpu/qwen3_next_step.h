// A step of Qwen3-Next-80B-A3B but for embedding and sampling, on random weights: whole, or one of
// two tensor-parallel ranks' share (without the ranks' sums).
#pragma once

#include <vector>

#include "gpu/step_batch.h"
#include "kernels/cuda/linear.h"
#include "kernels/gated_delta.h"

namespace vamp::cuda {

class Qwen3NextStep {
 public:
  static constexpr int kHidden = 2048, kVocab = 151936, kLayers = 48, kMaxTokens = 8192;
  static constexpr int kHeadDim = 256, kRotary = 64, kFullEvery = 4;

  // `own_experts`: layers with experts of their own; later ones use them again (all 48 layers' are
  // 144 GiB), which no cache holds either. `kv_tokens`, `max_sequences`: most that a batch may
  // have.
  Qwen3NextStep(int ranks, int own_experts, int kv_tokens, int max_sequences);

  void set_batch(int sequences, int fresh, int context);
  void step(cudaStream_t s);
  // Bytes that a step must read or write: dense weights, the experts that its tokens chose,
  // contexts, recurrent states.
  double bytes() const;

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
  void full_attention(int l, cudaStream_t s);
  void linear_attention(int l, cudaStream_t s);
  void linear(const __nv_bfloat16* x, int rows, const DeviceBuffer<__nv_bfloat16>& w, int N, int K,
              LinearPart::Out kind, void* out, cudaStream_t s);
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
  StepBatch batch_;
  DeviceBuffer<__nv_bfloat16> head_, residual_, x_, in_, mixed_, out_;
  DeviceBuffer<float> router_logits_, vocab_, norm_, cos_sin_, conv_, a_log_, dt_bias_, delta_norm_;
};

}  // namespace vamp::cuda
