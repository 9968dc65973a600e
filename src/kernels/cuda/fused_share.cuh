// What each block of the fused decode step does, and what it knows: its share of the rows of
// weights, its run of a context, the pieces that its warps join, its units of Gated DeltaNet.
#pragma once

#include "kernels/cuda/fused_decode.h"
#include "kernels/cuda/fused_exchange.cuh"
#include "kernels/cuda/fused_kinds.cuh"

namespace vamp::cuda::fused {

using bf16 = __nv_bfloat16;

constexpr int kWarps = 8, kConsumers = kWarps * 32;  // those that multiply
constexpr int kProducer = kWarps, kFinisher = kWarps + 1, kThreads = (kWarps + 2) * 32;
constexpr int kStep = 32;                         // values of a row in one step of a warp
constexpr int kChunkValues = 2 * kStep * kWarps;  // of a row, that all warps take in two steps
constexpr int kStageChunks = 2, kStageValues = kStageChunks * kChunkValues;  // at most
constexpr int kHalfStageBytes = 8 * kStageValues * 2, kStageBytes = 2 * kHalfStageBytes;
constexpr int kStages = 6;
// On their way to a block. With more of them memory is no faster, but what blocks tell each other
// waits behind them.
constexpr int kBytesInFlight = 64 * 1024;
constexpr int kHidden = 2048;                             // of the model
constexpr int kHiddenSteps = kHidden / (kWarps * kStep);  // of a warp, in a row of so many values
constexpr int kOutSteps = 16;     // in a row of heads * head_dim values, at most
constexpr int kMaxPairs = 64;     // tokens * top_k
constexpr int kMaxRows = 8;       // query heads of a KV head
constexpr int kPageBytes = 8192;  // of a context: keys, then values
constexpr int kStagePages = kStageBytes / kPageBytes;
constexpr int kMaxTokens = FusedDecode::kMaxTokens;

struct Args {
  FusedShape shape;
  FusedBatch batch;
  const FusedDecode::Layer* layers;
  const FusedDecode::Maps* maps;
  int count, tokens;
  int in_row, delta_row, router_rows, out_width;
  int rows;                 // query heads of a KV head
  uint32_t blocks_inverse;  // 2^32 / blocks, rounded up
  bf16* residual;
  uint32_t* sync;
  uint32_t* drawn;  // [layers] tiles of gate and up that blocks have drawn
  // What blocks tell each other: the input product; attention's pieces and, of each of their rows,
  // the largest score and the sum; its output; the residual after it; the router's logits; the
  // experts' activations; the residual after them. Of layers with Gated DeltaNet, the input product
  // and the sums of squares of each quarter of a head's output.
  InTurn<bf16> in;
  InTurn<float> partial;
  InTurn<float2> scores;
  InTurn<bf16> mixed, mid;
  InTurn<float> logits;
  InTurn<bf16> activation, end;
  InTurn<bf16> delta_in;
  InTurn<float> squares;
  char* exchange;  // all of these arrays
  int64_t exchange_bytes;
};

// An expert that some token chose, and in which of its slots each token has it (-1: not).
struct Items {
  int count;
  int16_t expert[kMaxPairs];
  int8_t slot[kMaxPairs][kMaxTokens];
  float weights[kMaxPairs];  // of each token's slots
  int chosen[kMaxPairs];
};

// A block's run of a context: pages [first, end), dealt to its warps in turn.
struct Unit {
  int token = -1;  // -1: this block has none
  int kv_head = 0, context = 0, first = 0, end = 0;
};

// Contexts are cut into as many pieces as there are blocks for them, but into no smaller ones than
// a page for each warp; more than 32, which join_pieces takes at a time, are a multiple of that.
__device__ __forceinline__ int pages_a_piece(int pages, int groups) {
  int pieces = static_cast<int>(gridDim.x) / groups;
  if (pieces > 32) pieces = pieces / 32 * 32;
  return max(kWarps, (pages + pieces - 1) / pieces);
}
template <typename Kind>
__device__ inline Unit find_unit(const Args& a) {
  constexpr int kPageTokens = Kind::kPageTokens;
  const int kv_heads = a.shape.kv_heads, groups = a.tokens * kv_heads;
  const int group = static_cast<int>(blockIdx.x) % groups;
  const int piece = static_cast<int>(blockIdx.x) / groups;
  Unit u;
  u.token = group / kv_heads;
  u.kv_head = group % kv_heads;
  u.context = a.batch.attention.context[u.token];
  const int pages = (u.context + kPageTokens - 1) / kPageTokens;
  const int per_piece = pages_a_piece(pages, groups);
  u.first = min(pages, piece * per_piece);
  u.end = min(pages, u.first + per_piece);
  if (u.first >= u.end) u.token = -1;
  return u;
}

// What a warp joins of the pieces: 32 values of a head from `column` on. `first`: the row of the
// first of so many pieces (none of a sequence without a context). token -1: nothing.
struct Join {
  int token, head, column, pieces, first;
};
template <typename Kind>
__device__ inline Join find_join(const Args& a, int number) {
  constexpr int kParts = Kind::kHeadDim / 32;
  const int heads = a.shape.heads, kv_heads = a.shape.kv_heads;
  Join j{};
  j.token = number / kParts / heads;
  if (j.token >= a.tokens) {
    j.token = -1;
    return j;
  }
  j.head = number / kParts - j.token * heads;
  j.column = number % kParts * 32;
  const int pages =
      (a.batch.attention.context[j.token] + Kind::kPageTokens - 1) / Kind::kPageTokens;
  const int per_piece = pages_a_piece(pages, a.tokens * kv_heads);
  j.pieces = (pages + per_piece - 1) / per_piece;
  const int kv_head = j.head / a.rows;
  j.first = (j.token * kv_heads + kv_head) * kMaxRows + j.head - kv_head * a.rows;
  return j;
}
// So many warps share one.
__device__ __forceinline__ int warps_of_join(const Args& a) {
  return a.tokens == 1 ? kWarps : a.tokens == 2 ? kWarps / 2 : kWarps / 4;
}

// A block's share of `all` groups of 8 rows.
struct Run {
  int first, end;
};
__device__ __forceinline__ Run share_of_block(const Args& a, int all) {
  const uint32_t first = static_cast<uint32_t>(all) * blockIdx.x;
  // n / blocks, for n blocks < 2^32
  return {static_cast<int>(__umulhi(first, a.blocks_inverse)),
          static_cast<int>(__umulhi(first + static_cast<uint32_t>(all), a.blocks_inverse))};
}

// Rows of a layer's input product.
__device__ __forceinline__ int input_rows(const Args& a, bool has_delta) {
  return has_delta ? a.delta_row : a.in_row;
}

// How the experts' rows of down follow each other through the stages: in units of 256 values, of
// which every consumer has 32, always the same ones of an expert's, so that a token's sums are the
// same whichever experts others have chosen. An expert's row is copied at once and lies in one
// stage, but for one of three full units, which are copied one by one.
constexpr int kUnitValues = kWarps * kStep, kStageUnits = kStageValues / kUnitValues;
__host__ __device__ __forceinline__ constexpr int units_of_expert(int intermediate) {
  const int units = (intermediate + kUnitValues - 1) / kUnitValues;
  return units == 3 && intermediate % kUnitValues != 0 ? kStageUnits : units;
}
__host__ __device__ __forceinline__ constexpr int units_of_copy(int intermediate) {
  const int units = units_of_expert(intermediate);
  return kStageUnits % units == 0 ? units : 1;
}

// Units of a layer with Gated DeltaNet: a quarter of the columns of a value head of a token, whose
// state is kStateBytes. Unit u is done by block u % blocks.
constexpr int kDeltaWidth = 4;  // of the convolution
constexpr int kDeltaDim = 128, kQuarters = 4, kQuarter = kDeltaDim / kQuarters;
constexpr int kStateBytes = kQuarter * kDeltaDim * sizeof(float);
static_assert(kStateBytes <= kStageBytes);
struct DeltaUnit {
  int token, head, quarter;
  int key, of_key;  // the key head, and which of its value heads
  __device__ DeltaUnit(const Args& a, int u) {
    const GatedDeltaShape& shape = a.shape.delta;
    quarter = u % kQuarters;
    token = u / kQuarters / shape.value_heads;
    head = u / kQuarters - token * shape.value_heads;
    key = head / shape.ratio();
    of_key = head - key * shape.ratio();
  }
  __device__ float* state(const Args& a, const FusedLayer& layer) const {
    return layer.states + a.batch.slots[token] * layer.state_stride +
           (head * kQuarters + quarter) * (kQuarter * kDeltaDim);
  }
  __device__ bf16* conv_state(const Args& a, const FusedLayer& layer, int channel) const {
    return layer.conv_states + a.batch.slots[token] * layer.conv_stride +
           int64_t{channel} * (kDeltaWidth - 1);
  }
};
__device__ __forceinline__ int delta_units(const Args& a) {
  return a.tokens * a.shape.delta.value_heads * kQuarters;
}

}  // namespace vamp::cuda::fused
