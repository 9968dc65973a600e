// What an instruction set provides: plain functions over plain ranges, each called by one thread.
// CpuOps divides the work and calls them. Row results never depend on the range they are computed
// in.
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "kernels/cpu/elements.h"

namespace vamp::cpu {

// Rows of activations: row r is source row (index ? index[r] / divisor : r) of data.
struct RowSource {
  const void* data = nullptr;
  int64_t stride = 0;  // elements
  const int32_t* index = nullptr;
  int divisor = 1;
  int64_t row(int r) const { return (index ? index[r] / divisor : r) * stride; }
};

// A block of input rows for products over k columns. `packed` is what pack() made of it, where the
// instruction set packs; else the products read `source`.
struct Input {
  RowSource source;
  int rows = 0;
  int k = 0;
  const void* packed = nullptr;
};

struct Product {
  enum class Out : uint8_t { kActivation, kFloat, kAddFloat };
  const void* weight = nullptr;  // [n, k]
  const float* bias = nullptr;
  void* out = nullptr;     // row r goes to out row (out_index ? out_index[r] : r)
  int64_t out_stride = 0;  // elements
  const int32_t* out_index = nullptr;
  Out kind = Out::kActivation;
};

// Products with weights of one element type.
struct Matmul {
  // Bytes of packed rows; 0: nothing is packed.
  size_t (*packed_bytes)(int rows, int k);
  // Packs row tiles [first, last) of kRowTile rows.
  void (*pack)(const Input& input, int first, int last, void* packed);
  // Output columns [n_begin, n_end) for all rows; n_begin is a multiple of kColumnTile.
  void (*multiply)(const Input& input, const Product& product, int n_begin, int n_end);
  // h = silu(gate x) · up x for columns [n_begin, n_end), in the layout multiply() reads: packed as
  // pack() does, or row-major activations with stride n.
  void (*gate_up)(const Input& input, const void* gate, const void* up, int n, int n_begin,
                  int n_end, void* h);
};
inline constexpr int kRowTile = 16;
inline constexpr int kColumnTile = 32;

struct NormArgs {
  const float* weight;
  float eps;
  bool one_plus;
};

// The queries of one sequence's tokens [first_token, first_token + tokens) in the query heads of
// one KV head, over that sequence's context.
struct AttentionTask {
  const void* q = nullptr;  // row of the first token, first of the `group` heads
  int64_t q_stride = 0;
  void* out = nullptr;
  int64_t out_stride = 0;
  int tokens = 0;
  int first_position = 0;
  int group = 0;
  int head_dim = 0;
  const void* arena = nullptr;  // moved so that block b's K of this layer and head is at
  int64_t block_stride = 0;     // b * block_stride elements, and its V v_offset further
  int64_t v_offset = 0;
  const int32_t* blocks = nullptr;
  int block_tokens = 0;
  Element kv_type = Element::kBf16;
  float scale = 1;
};

struct KernelTable {
  Matmul matmul[3];  // by Element of the weights

  // x += delta (if any), out = norm(x). x f32, delta and out activations; one row.
  void (*rms_norm)(float* x, const void* delta, int cols, const NormArgs& norm, void* out);
  // In place over `heads` consecutive heads.
  void (*head_norm)(void* x, int heads, int head_dim, const NormArgs& norm);
  void (*rope)(void* x, int heads, int head_dim, int rotary_dim, const float* cos_sin);
  void (*to_float)(const void* from, Element type, int64_t count, float* to);
  void (*activation_to)(const void* from, int64_t count, Element type, void* to);  // bf16 or f32
  void (*silu_and_mul)(const void* gate_up, int width, void* out);
  // residual += sum over ranks, in order, of weights[rank] · pairs[rank]; pairs are activations.
  void (*combine)(const void* pairs, const float* weights, int top_k, int hidden, float* residual);

  // The greatest of n > 0 logits and whether any is NaN.
  float (*max_logit)(const float* logits, int n, bool* nan);
  // out = exp((logits - max) · scale); returns their sum. out may be logits.
  float (*exp_logits)(const float* logits, int n, float max, float scale, float* out);

  size_t (*attention_scratch_bytes)(int rows, int head_dim);
  void (*attention)(const AttentionTask& task, void* scratch);
};

// Tables by activation type, one per instruction set. Call only what the processor has.
const KernelTable& scalar_kernels(Element activation);
const KernelTable& avx2_kernels(Element activation);
const KernelTable& avx512_kernels(Element activation);
const KernelTable& avx512_bf16_kernels();
const KernelTable& amx_bf16_kernels();

}  // namespace vamp::cpu
