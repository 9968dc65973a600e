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
  logits_ = AlignedBuffer(samples * model.vocab_size * sizeof(float));
}

size_t ModelRunner::buffer_bytes(const ModelConfig& model, OpsTypes types,
                                 const RunnerLimits& limits) {
  const Widths w(model, model.head_dim);
  const size_t rows = limits.max_tokens, samples = limits.max_samples;
  const size_t activation = dtype_bytes(types.activation), residual = dtype_bytes(types.residual);
  return rows * ((w.hidden + w.qkv + w.context + 3 * w.mlp) * activation + w.hidden * residual +
                 w.rotary * sizeof(float)) +
         samples * model.vocab_size * sizeof(float);
}

std::span<float> ModelRunner::forward(const StepBatch& batch, const KvCache& cache) {
  rows_ = batch.num_tokens();
  sequences_ = batch.sequences();
  const int samples = static_cast<int>(batch.sample_rows().size());
  VAMP_CHECK(rows_ <= limits_.max_tokens && samples <= limits_.max_samples,
             "a step of {} tokens, {} of which sample; at most {} and {}", rows_, samples,
             limits_.max_tokens, limits_.max_samples);
  ops_.embed(weights_.embedding, batch.tokens(), rows_, residual_.data());
  ops_.rope_angles(rope_, batch.positions(), rows_, cos_sin_.as<float>());
  int moe_layer = 0;
  for (int i = 0; i < model_.num_layers(); ++i) {
    const LayerWeights& layer = weights_.layers[i];
    attention(layer, i, batch, cache);
    ops_.rms_norm(residual_.data(), rows_, model_.hidden_size, layer.post_attention_norm,
                  normed_.data());
    if (layer.mlp) {
      dense_mlp(*layer.mlp);
    } else {
      moe_.run(moe_layer++, layer.router, normed_.data(), rows_, residual_.data());
    }
  }
  return logits();
}

void ModelRunner::attention(const LayerWeights& layer, int index, const StepBatch& batch,
                            const KvCache& cache) {
  const AttentionWeights& w = layer.attention;
  const int hidden = model_.hidden_size, dim = model_.head_dim;
  const int heads = model_.num_heads, kv_heads = model_.num_kv_heads;
  ops_.rms_norm(residual_.data(), rows_, hidden, layer.input_norm, normed_.data());

  // One row holds q, k and v side by side.
  const int64_t stride = static_cast<int64_t>(heads + 2 * kv_heads) * dim;
  const size_t element = dtype_bytes(ops_.types().activation);
  std::byte* q = qkv_.data();
  std::byte* k = q + static_cast<size_t>(heads) * dim * element;
  std::byte* v = k + static_cast<size_t>(kv_heads) * dim * element;
  const LinearPart projections[] = {part(w.q, w.q_bias, q, stride), part(w.k, w.k_bias, k, stride),
                                    part(w.v, w.v_bias, v, stride)};
  const std::span<const LinearPart> all(projections);
  // After the last layer's keys and values nobody asks for rows that don't sample.
  const bool narrows =
      index + 1 == model_.num_layers() && batch.sample_rows().size() < static_cast<size_t>(rows_);
  ops_.linear(normed_.data(), hidden, rows_, narrows ? all.subspan(1) : all);
  if (w.k_norm.data != nullptr) ops_.head_norm(k, stride, rows_, kv_heads, dim, w.k_norm);
  ops_.rope(k, stride, rows_, kv_heads, dim, rope_.rotary_dim, cos_sin_.as<float>());
  ops_.write_kv(k, stride, v, stride, sequences_, cache, index);
  if (narrows) {
    narrow(batch);
    ops_.linear(normed_.data(), hidden, rows_, all.first(1));
  }
  if (w.q_norm.data != nullptr) ops_.head_norm(q, stride, rows_, heads, dim, w.q_norm);
  ops_.rope(q, stride, rows_, heads, dim, rope_.rotary_dim, cos_sin_.as<float>());
  const int64_t out_stride = static_cast<int64_t>(heads) * dim;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  ops_.attention(q, stride, sequences_, cache, index, heads, scale, context_.data(), out_stride);
  const LinearPart out = part(w.o, w.o_bias, residual_.data(), hidden, LinearPart::Out::kResidual);
  ops_.linear(context_.data(), out_stride, rows_, {&out, 1});
}

void ModelRunner::narrow(const StepBatch& batch) {
  const auto gather = [&](const AlignedBuffer& rows, size_t row_bytes) {
    std::byte* to = rows.data();
    for (const int32_t row :
         batch.sample_rows()) {  // ascending: none is overwritten before it moves
      std::memmove(to, rows.data() + static_cast<size_t>(row) * row_bytes, row_bytes);
      to += row_bytes;
    }
  };
  gather(residual_, model_.hidden_size * dtype_bytes(ops_.types().residual));
  gather(normed_, model_.hidden_size * dtype_bytes(ops_.types().activation));
  gather(cos_sin_, rope_.rotary_dim * sizeof(float));
  rows_ = static_cast<int>(batch.sample_rows().size());
  sequences_ = batch.sampling_sequences();
}

void ModelRunner::dense_mlp(const DenseMlpWeights& mlp) {
  const int width = mlp.gate.rows;
  std::byte* up = gate_up_.data() + width * dtype_bytes(ops_.types().activation);
  const LinearPart in[] = {part(mlp.gate, nullptr, gate_up_.data(), 2 * width),
                           part(mlp.up, nullptr, up, 2 * width)};
  ops_.linear(normed_.data(), model_.hidden_size, rows_, in);
  ops_.silu_and_mul(gate_up_.data(), rows_, width, inner_.data());
  const LinearPart out =
      part(mlp.down, nullptr, residual_.data(), model_.hidden_size, LinearPart::Out::kResidual);
  ops_.linear(inner_.data(), width, rows_, {&out, 1});
}

std::span<float> ModelRunner::logits() {
  const int hidden = model_.hidden_size, vocab = model_.vocab_size;
  ops_.rms_norm(residual_.data(), rows_, hidden, weights_.final_norm, normed_.data());
  const LinearPart head =
      part(weights_.lm_head, nullptr, logits_.data(), vocab, LinearPart::Out::kFloat);
  ops_.linear(normed_.data(), hidden, rows_, {&head, 1});
  return {logits_.as<float>(), static_cast<size_t>(rows_) * vocab};
}

}  // namespace vamp
