// What becomes of the consumers' sums in the fused decode step: one warp of a block, the finisher,
// adds up what the others leave of a tile of 16 weight rows, and tells the other blocks. So nobody
// waits who has a next tile to multiply. It also keeps the block's rows of the residual, brings new
// keys and values, and sees to the order of memory (fused_exchange.cuh).
#pragma once

#include "kernels/cuda/fused_attention.cuh"
#include "kernels/cuda/fused_exchange.cuh"
#include "kernels/cuda/fused_routing.cuh"
#include "kernels/cuda/fused_stream.cuh"
#include "kernels/cuda/fused_trace.cuh"

namespace vamp::cuda::fused {

constexpr int kRowsOfBlock = 16;  // of the residual, at most

struct Handover {
  static constexpr int kBuffers = 3;
  using Place = Cyclic<kBuffers>;
  alignas(16) float partial[kBuffers][kMaxTokens][16][kWarps];  // sums of a tile
  Barrier summed[kBuffers], taken[kBuffers];
  int tile[kBuffers];  // of gate and up, -1: no more
  Barrier fenced;      // once a layer
  // Of the residual, before attention and before the experts.
  alignas(16) float squares[2][kMaxTokens][kWarps];

  __device__ void init() {
    for (int i = 0; i < kBuffers; ++i) {
      summed[i].init(kWarps);
      taken[i].init(1);
    }
    fenced.init(1);
  }
  // Sums of the calling warp for tokens 2 quad and the next: of row `group` (v[0, 1]) and 8 further
  // (v[2, 3]).
  __device__ __forceinline__ void put(const Lane& me, Place& place, const float (&v)[4],
                                      int of_tile) {
    taken[place.at].wait(place.parity ^ 1);
    if (2 * me.quad < kMaxTokens) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        partial[place.at][2 * me.quad + e % 2][me.group + e / 2 * 8][me.warp] = v[e];
    }
    if (me.thread == 0) tile[place.at] = of_tile;
    __syncwarp();
    if (me.lane == 0) summed[place.at].arrive();
    place.pass();
  }
};

template <typename Kind>
class Finisher {
 public:
  __device__ Finisher(const Args& a, const FusedDecode::Layer (&layers)[2], Handover& handover,
                      const Items& items, const Unit& unit, PieceShared<Kind>& attention)
      : a_(a),
        layers_(layers),
        handover_(handover),
        items_(items),
        unit_(unit),
        attention_(attention),
        rows_(share_of_block(a, kHidden / 8)) {}

  __device__ void run() {
#pragma unroll
    for (int j = 0; j < kRounds; ++j) residual_[j] = has_row(j) ? *residual(j) : bf16{};
#pragma unroll 1
    for (int l = 0; l < a_.count; ++l) {
      index_ = static_cast<uint32_t>(l);
      const FusedDecode::Layer& layer = layers_[l & 1];
      // `layer` was brought by the consumers, before the first sums.
      tiles(0, input_rows(a_, Kind::kMixed && a_.layers[l].has_delta()) / 8, 2,
            [&](int i, int end, int buffer) { input(layer, i, end, buffer); });
      trace(index_, kInputTold);
      if (!(Kind::kMixed && layer.has_delta())) new_token(layer);
      add_to_residual(a_.mid);
      trace(index_, kMidTold);
      tiles(1, a_.router_rows / 8, 2, [&](int i, int end, int buffer) { router(i, end, buffer); });
      trace(index_, kRouterTold);
      fence();
      __syncwarp();
      if (lane_ == 0) handover_.fenced.arrive();
      gate_and_up();
      trace(index_, kGateUpTold);
      add_to_residual(a_.end);
      trace(index_, kEndTold);
    }
    sync_with_finisher();
    sync_with_finisher();  // now everybody has read what the launch was given
#pragma unroll
    for (int j = 0; j < kRounds; ++j)
      if (has_row(j)) *residual(j) = residual_[j];
  }

 private:
  // A lane has a row of a token of a tile, and of two tokens more if there are so many.
  static constexpr int kRounds = kMaxTokens * 16 / 32;
  __device__ int token(int round) const {
    return round * 2 + lane_ / 16;
  }
  __device__ int row() const {
    return lane_ % 16;
  }
  __device__ bool has_row(int round) const {
    return token(round) < a_.tokens && rows_.first + row() / 8 < rows_.end;
  }
  __device__ bf16* residual(int round) const {
    return a_.residual + token(round) * kHidden + rows_.first * 8 + row();
  }

  // finish(first group of 8 rows, end of the block's groups, buffer) of each of this block's tiles,
  // of a product with the residual normed before attention (0) or before the experts (1).
  template <typename F>
  __device__ __forceinline__ void tiles(int experts, int groups, int stride, F&& finish) {
    const Run run = share_of_block(a_, groups);
#pragma unroll 1
    for (int i = run.first; i < run.end; i += stride) {
      take([&](int buffer) {
        if (i == run.first) find_scales(experts);
        finish(i, run.end, buffer);
      });
    }
  }
  template <typename F>
  __device__ __forceinline__ void take(F&& finish) {
    handover_.summed[place_.at].wait(place_.parity);
    finish(place_.at);
    __syncwarp();
    if (lane_ == 0) handover_.taken[place_.at].arrive();
    place_.pass();
  }
  __device__ __forceinline__ float total(int buffer, int round) const {
    const float4* of =
        reinterpret_cast<const float4*>(handover_.partial[buffer][token(round)][row()]);
    const float4 a = of[0], b = of[1];
    return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
  }
  // 1 / root mean square of the tokens' residual, which the consumers left out.
  __device__ __forceinline__ void find_scales(int experts) {
#pragma unroll
    for (int j = 0; j < kRounds; ++j) {
      const float4* sums = reinterpret_cast<const float4*>(handover_.squares[experts][token(j)]);
      const float4 a = sums[0], b = sums[1];
      const float squares = a.x + a.y + a.z + a.w + (b.x + b.y + b.z + b.w);
      scale_[j] = rsqrtf(squares * (1.0f / kHidden) + a_.shape.eps);
    }
  }
  // Two values a word: the even rows' lanes write it.
  __device__ static uint32_t word_of(float value) {
    return pack_bf16(value, __shfl_down_sync(0xffffffffu, value, 1));
  }

  __device__ void input(const FusedDecode::Layer& layer, int i, int end, int buffer) {
    const bool delta = Kind::kMixed && layer.has_delta();
    const InTurn<bf16>& to = delta ? a_.delta_in : a_.in;
    const int width = input_rows(a_, delta);
#pragma unroll
    for (int j = 0; j < kRounds; ++j) {
      if (2 * j >= a_.tokens) break;
      const uint32_t word = word_of(total(buffer, j) * scale_[j]);
      if (token(j) < a_.tokens && row() % 2 == 0 && i + row() / 8 < end)
        publish(to, turn(layer), (token(j) * width + i * 8 + row()) / 2, word);
    }
  }
  __device__ void router(int i, int end, int buffer) {
#pragma unroll
    for (int j = 0; j < kRounds; ++j) {
      if (2 * j >= a_.tokens) break;
      const float sum = total(buffer, j) * scale_[j];
      if (token(j) < a_.tokens && i + row() / 8 < end)
        publish(a_.logits, index_, token(j) * a_.router_rows + i * 8 + row(), __float_as_uint(sum));
    }
  }
  // The tiles that the producer drew.
  __device__ void gate_and_up() {
    bool is_first = true, more = true;
#pragma unroll 1
    while (more) {
      take([&](int buffer) {
        const int tile = handover_.tile[buffer];
        more = tile >= 0;
        if (!more) return;
        if (is_first) find_scales(1);
        is_first = false;
        gate_up(tile, buffer);
      });
    }
  }
  // 8 rows of gate, then the same of up. What down multiplies has the expert's weight already.
  __device__ void gate_up(int i, int buffer) {
    const int I = a_.shape.moe.intermediate, item = i / (I / 8), first = (i - item * (I / 8)) * 8;
#pragma unroll
    for (int j = 0; j < kRounds; ++j) {
      if (2 * j >= a_.tokens) break;
      const float sum = total(buffer, j) * scale_[j];
      const int t = token(j), k = a_.shape.moe.top_k;
      const int slot = t < a_.tokens ? items_.slot[item][t] : -1;
      const float weight = slot >= 0 ? items_.weights[t * k + slot] : 0.0f;
      const float up = __shfl_down_sync(0xffffffffu, sum, 8);
      const uint32_t word = word_of(__fdividef(sum, 1.0f + __expf(-sum)) * up * weight);
      if (slot >= 0 && row() < 8 && row() % 2 == 0)
        publish(a_.activation, index_, ((t * k + slot) * I + first + row()) / 2, word);
    }
  }
  __device__ void add_to_residual(const InTurn<bf16>& to) {
    take([&](int buffer) {
#pragma unroll
      for (int j = 0; j < kRounds; ++j) {
        if (2 * j >= a_.tokens) break;
        residual_[j] = __float2bfloat16(__bfloat162float(residual_[j]) + total(buffer, j));
        const uint32_t word = word_of(__bfloat162float(residual_[j]));
        if (has_row(j) && row() % 2 == 0)
          publish(to, index_, (token(j) * kHidden + rows_.first * 8 + row()) / 2, word);
      }
    });
  }
  // The new token's key and value, to shared memory and to the cache, if they are this block's.
  __device__ void new_token(const FusedDecode::Layer& layer) {
    if (!has_newest<Kind>(unit_)) return;
    bring_key_and_value<Kind>(a_, layer, turn(layer), unit_, attention_);
    sync_with_finisher();
    keep_token<Kind>(a_, layer, unit_, attention_);
  }
  __device__ uint32_t turn(const FusedDecode::Layer& layer) const {
    return Kind::kMixed ? layer.before : index_;
  }

  const Args& a_;
  const FusedDecode::Layer (&layers_)[2];
  Handover& handover_;
  const Items& items_;
  const Unit& unit_;
  PieceShared<Kind>& attention_;
  const Run rows_;
  const int lane_ = static_cast<int>(threadIdx.x) % 32;
  uint32_t index_ = 0;  // of the layer
  Handover::Place place_;
  bf16 residual_[kRounds];
  float scale_[kRounds];
};

}  // namespace vamp::cuda::fused
