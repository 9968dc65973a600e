// The forward pass: a step's tokens through all layers, and logits for those that sample.
#pragma once

#include <span>

#include "exec/aligned_buffer.h"
#include "exec/model_weights.h"
#include "exec/moe_executor.h"
#include "exec/step_batch.h"
#include "kernels/ops.h"

namespace vamp {

struct RunnerLimits {
  int max_tokens = 0;   // rows of one step
  int max_samples = 0;  // rows of one step that sample
};

// Mixtral and Qwen3-MoE; what differs between them is in ModelConfig and in which weights there
// are. Owns the activations. The executor's worker thread only.
class ModelRunner {
 public:
  // All references must outlive it.
  ModelRunner(const ModelConfig& model, const ModelWeights& weights, Ops& ops, MoeExecutor& moe,
              const RunnerLimits& limits);

  static size_t buffer_bytes(const ModelConfig& model, OpsTypes types, const RunnerLimits& limits);

  // Computes keys and values of the batch's tokens into `cache`, and the logits of its sample rows,
  // f32 [sample_rows, vocab], valid until the next call; the caller may overwrite them. Of the
  // MoE's step, begin and end are the caller's.
  std::span<float> forward(const StepBatch& batch, const KvCache& cache);

 private:
  void attention(const LayerWeights& layer, int index, const StepBatch& batch,
                 const KvCache& cache);
  // Of all rows only those that sample go on, moved together.
  void narrow(const StepBatch& batch);
  void dense_mlp(const DenseMlpWeights& mlp);
  std::span<float> logits();

  const ModelConfig& model_;
  const ModelWeights& weights_;
  Ops& ops_;
  MoeExecutor& moe_;
  RunnerLimits limits_;
  RopeFrequencies rope_;

  // Of the present step.
  int rows_ = 0;
  SequenceBatch sequences_;

  // [max_tokens, ...] each.
  AlignedBuffer residual_;         // [hidden]
  AlignedBuffer normed_;           // [hidden]
  AlignedBuffer qkv_;              // [(heads + 2 kv_heads) head_dim]
  AlignedBuffer context_;          // [heads head_dim]
  AlignedBuffer cos_sin_;          // f32 [rotary_dim]
  AlignedBuffer gate_up_, inner_;  // dense layers only: [2 width], [width]
  AlignedBuffer logits_;           // f32 [max_samples, vocab]
};

}  // namespace vamp
