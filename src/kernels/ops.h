// The operations a model runner calls, the same for every backend: plain pointers into the
// backend's memory, shapes, and an Ops object that stands for the context they run in (CPU: a
// thread pool; CUDA: a stream). Matrices are row-major; weights are [out, in] as Hugging Face
// stores them, never repacked.
//
// Element types. Activations are types().activation (bf16 or f32); the residual stream, which the
// layers add to, is types().residual; logits, norm weights, biases and routing weights are f32.
// Sums are accumulated in f32.
//
// Batch invariance (CPU): every output row is a function of its own input row (for attention: of
// its own context) and the weights, to the bit. It does not depend on the number of rows, on the
// row's place among them, on chunking, on the block ids, or on the number of threads. Each kernel
// fixes the order of every reduction; which order depends only on the instruction set, chosen at
// construction.
//
// An Ops object is used by one thread at a time. Operations are ordered as called; on the CPU each
// has ended when its call returns. Buffers must not overlap unless said. rows == 0 is allowed
// everywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/units.h"
#include "kernels/kv_layout.h"
#include "kernels/rope.h"
#include "model/model_config.h"

namespace vamp {

struct OpsTypes {
  DType activation = DType::kF32;  // kBf16 or kF32
  DType residual = DType::kF32;
};

// A weight matrix [rows = out, cols = in], rows contiguous; bf16, f16 or f32.
struct WeightMatrix {
  const void* data = nullptr;
  DType dtype = DType::kBf16;
  int rows = 0;
  int cols = 0;
};

// RMSNorm: x / sqrt(mean(x²) + eps) · w, or · (1 + w).
struct NormWeight {
  const float* data = nullptr;  // [cols]
  float eps = 1e-6f;
  bool one_plus = false;
};

// One product of a linear() call: out = x Wᵀ + bias.
struct LinearPart {
  enum class Out {
    kActivation,  // out is types().activation
    kFloat,       // out is f32
    kResidual,    // out is types().residual, and the product is added to it
  };
  WeightMatrix weight;
  const float* bias = nullptr;  // [weight.rows] or null
  void* out = nullptr;          // [rows, weight.rows]
  int64_t out_stride = 0;       // elements between rows of out
  Out kind = Out::kActivation;
};

// The tokens of a step and whose they are. Sequence s owns tokens [query_start[s],
// query_start[s+1]), which stand at consecutive positions; its context is all positions up to its
// last token's. Block j of its table, block_ids[block_start[s] + j], holds positions [j *
// block_tokens, (j+1) * block_tokens).
struct SequenceBatch {
  int num_tokens = 0;
  int num_sequences = 0;
  const int32_t* positions = nullptr;    // [num_tokens]
  const int32_t* query_start = nullptr;  // [num_sequences + 1]
  const int32_t* block_start = nullptr;  // [num_sequences + 1]
  const int32_t* block_ids = nullptr;    // [block_start[num_sequences]]
};

struct MoeShape {
  int experts = 0;
  int top_k = 0;
  int hidden = 0;
  int intermediate = 0;
};

// One layer's experts: expert e's gate rows then up rows [2I, H] at gate_up + e * gate_up_stride
// bytes, its down matrix [H, I] at down + e * down_stride bytes.
struct MoeWeights {
  const void* gate_up = nullptr;
  const void* down = nullptr;
  size_t gate_up_stride = 0;
  size_t down_stride = 0;
  DType dtype = DType::kBf16;
};

// Who goes to which expert. A pair is token * top_k + rank.
struct MoeRouting {
  int32_t* experts = nullptr;  // [tokens, top_k], best first
  float* weights = nullptr;    // [tokens, top_k]
  int32_t* expert_start =
      nullptr;               // [experts + 1]: pairs of expert e are pairs[expert_start[e] ...]
  int32_t* pairs = nullptr;  // [tokens * top_k], ascending within an expert
};

// How one row of logits is turned into a token; the order of steps is vLLM's: bias, penalties,
// temperature, min-p, top-k, top-p. Meanings of the numbers as in SamplingParams.
struct SampleParams {
  float temperature = 0.0f;  // 0: the best token, ties to the lower id
  float top_p = 1.0f;
  int top_k = 0;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f, presence_penalty = 0.0f, frequency_penalty = 0.0f;
  std::span<const std::pair<TokenId, float>> logit_bias = {};  // -inf forbids a token
  std::span<const TokenId> prompt = {};                        // for the repetition penalty
  std::span<const TokenId> output = {};                        // for all penalties
  std::span<const uint32_t> allowed =
      {};  // bit t % 32 of word t / 32: token t may come; empty: all
  uint64_t seed = 0;
  uint64_t counter = 0;  // tokens sampled before: (seed, counter) alone make the random number
  int logprobs = -1;     // as in SamplingParams: of the unmodified logits
};

struct Sample {
  TokenId token = 0;
  float logprob = 0;                                    // of `token`, when logprobs >= 0
  std::vector<std::pair<TokenId, float>> top_logprobs;  // best first
  bool invalid = false;  // the logits held NaN, or no token had a finite one
};

class Ops {
 public:
  virtual ~Ops() = default;
  virtual OpsTypes types() const = 0;

  // residual[r] = table[ids[r]]. residual is [rows, table.cols].
  virtual void embed(const WeightMatrix& table, const TokenId* ids, int rows, void* residual) = 0;

  // out[r] = norm(residual[r]). residual, out (activation): [rows, cols].
  virtual void rms_norm(const void* residual, int rows, int cols, const NormWeight& weight,
                        void* out) = 0;
  // residual[r] += delta[r] (activation), then out[r] = norm(residual[r]).
  virtual void add_rms_norm(const void* delta, void* residual, int rows, int cols,
                            const NormWeight& weight, void* out) = 0;

  // Products of one input x (activation, [rows, cols of the weights], x_stride elements between
  // rows) with several matrices.
  virtual void linear(const void* x, int64_t x_stride, int rows,
                      std::span<const LinearPart> parts) = 0;

  // In place, per head: x (activation) is [rows, heads, head_dim], x_stride elements between rows;
  // weight is [head_dim], the same for every head.
  virtual void head_norm(void* x, int64_t x_stride, int rows, int heads, int head_dim,
                         const NormWeight& weight) = 0;

  // cos_sin[r] = cosines then sines of positions[r]'s angles, times the attention factor:
  // f32 [rows, 2, rope.rotary_dim / 2]. Made once a step, for all layers.
  virtual void rope_angles(const RopeFrequencies& rope, const int32_t* positions, int rows,
                           float* cos_sin) = 0;
  // In place: pairs (i, i + rotary_dim/2) of each head's first rotary_dim elements are rotated.
  virtual void rope(void* x, int64_t x_stride, int rows, int heads, int head_dim, int rotary_dim,
                    const float* cos_sin) = 0;

  // Writes the tokens' keys and values ([tokens, kv_heads, head_dim] activations) into their
  // blocks.
  virtual void write_kv(const void* k, int64_t k_stride, const void* v, int64_t v_stride,
                        const SequenceBatch& batch, const KvCache& cache, int layer) = 0;

  // Causal attention of every token over its own context, which write_kv has filled: q and out are
  // [tokens, num_heads, head_dim] activations; query head h reads KV head h / (num_heads/kv_heads).
  virtual void attention(const void* q, int64_t q_stride, const SequenceBatch& batch,
                         const KvCache& cache, int layer, int num_heads, float scale, void* out,
                         int64_t out_stride) = 0;

  // out[r] = silu(gate_up[r, :width]) · gate_up[r, width:]. Activations [rows, 2 width], [rows,
  // width].
  virtual void silu_and_mul(const void* gate_up, int rows, int width, void* out) = 0;

  // Fills `routing` from router logits (f32 [tokens, experts]): softmax over all experts, top-k
  // with ties to the lower id, weights divided by their sum if `renormalise` (qwen3_moe's
  // norm_topk_prob; Mixtral always does); then pairs sorted by expert.
  virtual void route(const float* logits, int tokens, const MoeShape& shape, bool renormalise,
                     const MoeRouting& routing) = 0;
  virtual size_t moe_workspace_bytes(int tokens, const MoeShape& shape) const = 0;
  // For every pair of the experts in `subset` (distinct ids): down(silu(gate x) · up x), kept in
  // `workspace`. x is [tokens, hidden] activations. Calls with other subsets of the same routing
  // add to the same workspace, in any order: resident experts first, staged ones when their bytes
  // have arrived. Weights of experts outside the subset, or chosen by no token, are not read.
  virtual void moe_experts(const void* x, int tokens, const MoeShape& shape,
                           const MoeWeights& weights, const MoeRouting& routing,
                           std::span<const int32_t> subset, void* workspace) = 0;
  // residual[t] += Σ_rank weights[t, rank] · expert output, by rank. After every pair is done.
  virtual void moe_combine(const void* workspace, int tokens, const MoeShape& shape,
                           const MoeRouting& routing, void* residual) = 0;

  // logits: f32 [rows, vocab], overwritten. params and out have `rows` entries, on the host.
  virtual void sample(float* logits, int rows, int vocab, std::span<const SampleParams> params,
                      std::span<Sample> out) = 0;
};

}  // namespace vamp
