// The pieces of attention of the fused decode step, joined to its output.
#pragma once

#include "kernels/cuda/fused_attention.cuh"
#include "kernels/cuda/fused_trace.cuh"

namespace vamp::cuda::fused {

// Gates of four columns of a token's output, from `column` on.
struct Gates {
  const bf16* from;
  uint2 bits;
  __device__ void ask(const Args& a, uint32_t turn, int token, int column) {
    const int gates = (a.shape.heads + 2 * a.shape.kv_heads) * a.shape.head_dim;
    from = a.in.of(turn) + static_cast<int64_t>(token) * a.in_row + gates + column;
    bits = peek8(from);
  }
  // values[0 ... 3] times their sigmoids.
  __device__ void multiply(float (&values)[5]) {
    while (__any_sync(0xffffffffu, bits.x == kUnwritten || bits.y == kUnwritten))
      bits = peek8(from);
    const float gate[4] = {bf16_low(bits.x), bf16_high(bits.x), bf16_low(bits.y),
                           bf16_high(bits.y)};
#pragma unroll
    for (int e = 0; e < 4; ++e) values[e] /= 1.0f + __expf(-gate[e]);
  }
};

// The pieces of every sequence: 32 dims of a head by so many warps as there are for it. A warp
// takes four pieces at a time, each by 8 lanes of 4 dims. `turn`: of what only layers with
// attention tell each other; `index`: of the output. `joins`: the warps' first ones.
template <typename Kind>
__device__ inline void join_pieces(const Args& a, uint32_t turn, uint32_t index,
                                   const Join (&joins)[kWarps], PieceShared<Kind>& shared,
                                   float4 (&joined)[kWarps][32]) {
  constexpr int kHeadDim = Kind::kHeadDim, kTogether = 4;
  const int groups = a.tokens * a.shape.kv_heads, ways = warps_of_join(a);
  const int all = a.tokens * a.shape.heads * (kHeadDim / 32), blocks = static_cast<int>(gridDim.x);
  const Lane me;
  const int d4 = me.lane % 8, mine = me.lane / 8, way = me.warp % ways;
  Join join = joins[me.warp];
#pragma unroll 1
  for (int first = static_cast<int>(blockIdx.x); first < all; first += blocks * (kWarps / ways)) {
    if (first >= blocks) join = find_join<Kind>(a, first + me.warp / ways * blocks);
    const bool is_mine = way == 0 && join.token >= 0;
    Gates gates;
    if (Kind::kMixed && is_mine)
      gates.ask(a, turn, join.token, join.head * kHeadDim + join.column + d4 * 4);
    float most = -INFINITY, sum = 0, value[4] = {};
#pragma unroll 1
    for (int p = way * kTogether + mine; p - mine < join.pieces; p += ways * kTogether) {
      const int64_t at = static_cast<int64_t>(p * groups) * kMaxRows + join.first;
      uint2 score = {0xff800000u, 0};  // -infinity
      uint4 v{};
      bool waits;
      do {
        if (p < join.pieces) {
          score = peek8(a.scores.of(turn) + at);
          v = peek16(a.partial.of(turn) + at * kHeadDim + join.column + d4 * 4);
        }
        waits = unwritten(v) || score.x == kUnwritten || score.y == kUnwritten;
      } while (__any_sync(0xffffffffu, waits));
      const float of_piece = __uint_as_float(score.x), here = fmaxf(most, of_piece);
      const float shrink = here == -INFINITY ? 0.0f : exp2f(most - here);
      const float weight = of_piece == -INFINITY ? 0.0f : exp2f(of_piece - here);
      most = here;
      sum = sum * shrink + weight * __uint_as_float(score.y);
      const uint32_t of[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) value[e] = value[e] * shrink + weight * __uint_as_float(of[e]);
    }
    trace(index, kPiecesArrived);
    joined[me.warp][me.lane] = {value[0], value[1], value[2], value[3]};
    if (d4 == 0) shared.joined_scores[me.warp][mine] = {most, sum};
    sync_consumers();
    if (is_mine) {
      float2 scores[kWarps];
      float all_most = -INFINITY, of[5] = {};
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if (w >= ways) break;
        scores[w] = shared.joined_scores[me.warp + w][mine];
        all_most = fmaxf(all_most, scores[w].x);
      }
      all_most = fmaxf(all_most, __shfl_xor_sync(0xffffffffu, all_most, 8));
      all_most = fmaxf(all_most, __shfl_xor_sync(0xffffffffu, all_most, 16));
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if (w >= ways) break;
        const float share = scores[w].x == -INFINITY ? 0.0f : exp2f(scores[w].x - all_most);
        const float4 from = joined[me.warp + w][me.lane];
        of[0] = fmaf(share, from.x, of[0]);
        of[1] = fmaf(share, from.y, of[1]);
        of[2] = fmaf(share, from.z, of[2]);
        of[3] = fmaf(share, from.w, of[3]);
        of[4] = fmaf(share, scores[w].y, of[4]);
      }
#pragma unroll
      for (float& f : of) {
        f += __shfl_xor_sync(0xffffffffu, f, 8);
        f += __shfl_xor_sync(0xffffffffu, f, 16);
      }
      const float scale = of[4] == 0 ? 0.0f : 1.0f / of[4];
      if constexpr (Kind::kMixed) gates.multiply(of);
      const int64_t word =
          (static_cast<int64_t>(join.token * a.shape.heads + join.head) * kHeadDim + join.column) /
              2 +
          d4 * 2;
      if (mine < 2)
        publish(a.mixed, index, word + mine,
                mine == 0 ? pack_bf16(of[0] * scale, of[1] * scale)
                          : pack_bf16(of[2] * scale, of[3] * scale));
    }
    sync_consumers();
  }
}

}  // namespace vamp::cuda::fused
