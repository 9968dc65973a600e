#include "exec/model_runner.h"

#include <cmath>
#include <cstring>

#include "base/error.h"

namespace vamp {
namespace {

// Elements of one row of each buffer, in one place for the buffers and their sum.
struct Widths {
  size_t hidden, qkv, context, rotary, mlp;

  Widths(const ModelConfig& model, int rotary_dim)
      : hidden(model.hidden_size),
        qkv(static_cast<size_t>(model.num_heads + 2 * model.num_kv_heads) * model.head_dim),
        context(static_cast<size_t>(model.num_heads) * model.head_dim),
        rotary(rotary_dim),
        mlp(0) {
    for (const LayerConfig& layer : model.layers) {
      if (layer.mlp == MlpKind::kDense) mlp = model.dense_intermediate_size;
    }
  }
};

LinearPart part(const WeightMatrix& weight, const float* bias, void* out, int64_t out_stride,
                LinearPart::Out kind = LinearPart::Out::kActivation) {
  LinearPart p;
  p.weight = weight;
  p.bias = bias;
  p.out = out;
  p.out_stride = out_stride;
  p.kind = kind;
  return p;
}

}  // namespace

ModelRunner::ModelRunner(const ModelConfig& model, const ModelWeights& weights, Ops& ops,
                         MoeExecutor& moe, const RunnerLimits& limits)
    : model_(model),
      weights_(weights),
      ops_(ops),
      moe_(moe),
      limits_(limits),
      rope_(make_rope_frequencies(model.rope, model.head_dim)) {
  const Widths w(model, rope_.rotary_dim);
  const size_t rows = limits.max_tokens, samples = limits.max_samples;
  const size_t activation = dtype_bytes(ops.types().activation);
  const size_t residual = dtype_bytes(ops.types().residual);
  residual_ = AlignedBuffer(rows * w.hidden * residual);
  normed_ = AlignedBuffer(rows * w.hidden * activation);
  qkv_ = AlignedBuffer(rows * w.qkv * activation);
  context_ = AlignedBuffer(rows * w.context * activation);
  cos_sin_ = AlignedBuffer(rows * w.rotary * sizeof(float));
  gate_up_ = AlignedBuffer(rows * 2 * w.mlp * activation);
  inner_ = AlignedBuffer(rows * w.mlp * activation);
  last_rows_ = AlignedBuffer(samples * w.hidden * residual);
  logits_ = AlignedBuffer(samples * model.vocab_size * sizeof(float));
}

size_t ModelRunner::buffer_bytes(const ModelConfig& model, OpsTypes types,
                                 const RunnerLimits& limits) {
  const Widths w(model, model.head_dim);
  const size_t rows = limits.max_tokens, samples = limits.max_samples;
  const size_t activation = dtype_bytes(types.activation), residual = dtype_bytes(types.residual);
  return rows * ((w.hidden + w.qkv + w.context + 3 * w.mlp) * activation + w.hidden * residual +
                 w.rotary * sizeof(float)) +
         samples * (w.hidden * residual + model.vocab_size * sizeof(float));
}

std::span<float> ModelRunner::forward(const StepBatch& batch, const KvCache& cache) {
  const int rows = batch.num_tokens();
  VAMP_CHECK(rows <= limits_.max_tokens, "{} tokens in a step of at most {}", rows,
             limits_.max_tokens);
  ops_.embed(weights_.embedding, batch.tokens(), rows, residual_.data());
  ops_.rope_angles(rope_, batch.positions(), rows, cos_sin_.as<float>());
  int moe_layer = 0;
  for (int i = 0; i < model_.num_layers(); ++i) {
    const LayerWeights& layer = weights_.layers[i];
    attention(layer, i, batch, cache);
    ops_.rms_norm(residual_.data(), rows, model_.hidden_size, layer.post_attention_norm,
                  normed_.data());
    if (layer.mlp) {
      dense_mlp(*layer.mlp, rows);
    } else {
      moe_.run(moe_layer++, layer.router, normed_.data(), rows, residual_.data());
    }
  }
  return logits(batch);
}

void ModelRunner::attention(const LayerWeights& layer, int index, const StepBatch& batch,
                            const KvCache& cache) {
  const AttentionWeights& w = layer.attention;
  const int rows = batch.num_tokens(), hidden = model_.hidden_size, dim = model_.head_dim;
  const int heads = model_.num_heads, kv_heads = model_.num_kv_heads;
  ops_.rms_norm(residual_.data(), rows, hidden, layer.input_norm, normed_.data());

  // One row holds q, k and v side by side.
  const int64_t stride = static_cast<int64_t>(heads + 2 * kv_heads) * dim;
  const size_t element = dtype_bytes(ops_.types().activation);
  std::byte* q = qkv_.data();
  std::byte* k = q + static_cast<size_t>(heads) * dim * element;
  std::byte* v = k + static_cast<size_t>(kv_heads) * dim * element;
  const LinearPart projections[] = {part(w.q, w.q_bias, q, stride), part(w.k, w.k_bias, k, stride),
                                    part(w.v, w.v_bias, v, stride)};
  ops_.linear(normed_.data(), hidden, rows, projections);
  if (w.q_norm.data != nullptr) {
    ops_.head_norm(q, stride, rows, heads, dim, w.q_norm);
    ops_.head_norm(k, stride, rows, kv_heads, dim, w.k_norm);
  }
  ops_.rope(q, stride, rows, heads, dim, rope_.rotary_dim, cos_sin_.as<float>());
  ops_.rope(k, stride, rows, kv_heads, dim, rope_.rotary_dim, cos_sin_.as<float>());

  const SequenceBatch sequences = batch.sequences();
  ops_.write_kv(k, stride, v, stride, sequences, cache, index);
  const int64_t out_stride = static_cast<int64_t>(heads) * dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  ops_.attention(q, stride, sequences, cache, index, heads, scale, context_.data(), out_stride);
  const LinearPart out = part(w.o, w.o_bias, residual_.data(), hidden, LinearPart::Out::kResidual);
  ops_.linear(context_.data(), out_stride, rows, {&out, 1});
}

void ModelRunner::dense_mlp(const DenseMlpWeights& mlp, int rows) {
  const int width = mlp.gate.rows;
  std::byte* up = gate_up_.data() + width * dtype_bytes(ops_.types().activation);
  const LinearPart in[] = {part(mlp.gate, nullptr, gate_up_.data(), 2 * width),
                           part(mlp.up, nullptr, up, 2 * width)};
  ops_.linear(normed_.data(), model_.hidden_size, rows, in);
  ops_.silu_and_mul(gate_up_.data(), rows, width, inner_.data());
  const LinearPart out =
      part(mlp.down, nullptr, residual_.data(), model_.hidden_size, LinearPart::Out::kResidual);
  ops_.linear(inner_.data(), width, rows, {&out, 1});
}

std::span<float> ModelRunner::logits(const StepBatch& batch) {
  const int samples = static_cast<int>(batch.sample_rows().size());
  VAMP_CHECK(samples <= limits_.max_samples, "{} rows sample in a step of at most {}", samples,
             limits_.max_samples);
  const int hidden = model_.hidden_size, vocab = model_.vocab_size;
  const size_t row_bytes = hidden * dtype_bytes(ops_.types().residual);
  for (int i = 0; i < samples; ++i) {
    std::memcpy(last_rows_.data() + i * row_bytes,
                residual_.data() + batch.sample_rows()[i] * row_bytes, row_bytes);
  }
  ops_.rms_norm(last_rows_.data(), samples, hidden, weights_.final_norm, normed_.data());
  const LinearPart head =
      part(weights_.lm_head, nullptr, logits_.data(), vocab, LinearPart::Out::kFloat);
  ops_.linear(normed_.data(), hidden, samples, {&head, 1});
  return {logits_.as<float>(), static_cast<size_t>(samples) * vocab};
}

}  // namespace vamp
