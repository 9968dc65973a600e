// A layer of the fused decode step, as the consumers of a block go through it.
#pragma once

#include "kernels/cuda/fused_attention.cuh"
#include "kernels/cuda/fused_exchange.cuh"
#include "kernels/cuda/fused_routing.cuh"
#include "kernels/cuda/fused_stream.cuh"

namespace vamp::cuda::fused {

constexpr int kRowsOfBlock = 16;  // of the residual, at most

struct Shared {
  Ring ring;
  union {
    // Partial sums of a tile, twice: a tile's are read while the next one's are written.
    float partial[2][kMaxTokens][16][kWarps];
    uint4 staged[kWarps][32];  // a token's normed values of a warp
    float logits[kMaxTokens][kMaxExperts];
  };
  float squares[kMaxTokens][kWarps];
  bf16 residual[kMaxTokens][kRowsOfBlock];  // of this block's rows
  Args args;  // here the compiler does not keep them in registers throughout
  FusedLayer layers[2];
  Unit unit;
  RoutingShared routing;
  uint32_t epoch;  // of the first layer
  PieceShared attention;
};

// A lane's share of the tokens: of token lane / 4, 8 values of every step.
struct Tokens {
  uint4 of[kHiddenSteps];
};

// Sums of a warp over its values, for tokens 2 (lane % 4) and the next: of weight row lane / 4 ([0,
// 1]) and 8 further ([2, 3]). In the product weights are the first operand, so that tokens, which
// stay in registers, are the one that has no padding. Two sums in turn: they take as long as one.
struct Sums {
  float of[2][4] = {};
  __device__ __forceinline__ void add(const Weights& w, const uint4& x, int which) {
    skinny::mma(of[which], w.low.x, w.high.x, w.low.y, w.high.y, x.x, x.y);
    skinny::mma(of[which], w.low.z, w.high.z, w.low.w, w.high.w, x.z, x.w);
  }
  __device__ __forceinline__ float total(int i) const { return of[0][i] + of[1][i]; }
};

template <typename T>
__device__ inline void copy_words(T& to, const T& from) {
  static_assert(sizeof(T) % 8 == 0 && sizeof(T) / 8 <= kConsumers);
  if (threadIdx.x < sizeof(T) / 8)
    reinterpret_cast<uint64_t*>(&to)[threadIdx.x] =
        reinterpret_cast<const uint64_t*>(&from)[threadIdx.x];
}

// What the consumers do in a layer, in phases. Each is a function of its own (run_phase), and what
// two of them do alike stands once: all of the code must fit 128 KB, or it is fetched anew in every
// layer, three times as slowly.
class Phase {
 public:
  __device__ Phase(Shared& shared, int layer, Position at)
      : shared_(shared),
        a_(shared.args),
        layer_(shared.layers[layer & 1]),
        index_(layer),
        epoch_(shared.epoch + static_cast<uint32_t>(layer)),
        stream_(shared.ring, at) {}
  __device__ Position position() const { return stream_.position(); }

  // The products with the normed residual: of the input projection, or of the router and then of
  // the experts that it chose.
  __device__ void normed(bool experts) {
    if (!experts && index_ + 1 < a_.count)
      copy_words(shared_.layers[(index_ + 1) & 1], a_.layers[index_ + 1]);
    Tokens x;
    load_normed(experts, x);
    Product now = experts ? kRouter : kInput;
    if (experts) clear_items(shared_.routing);
#pragma unroll 1
    while (true) {
      product(now, x);
      if (now != kRouter) break;
      choose_experts(a_, layer_, epoch_, shared_.routing, shared_.logits);
      if (threadIdx.x == 0) shared_.ring.chosen.arrive();  // the producer may go on
      now = kGateUp;
    }
  }
  __device__ void attention() {
    fence();
    attend(a_, layer_, epoch_, shared_.unit, stream_, shared_.ring, shared_.attention);
    join_pieces(a_, epoch_);
  }
  // residual += mixed outᵀ
  __device__ void output() {
    const int K = a_.out_width, steps = K / (kWarps * kStep);
    const Lane me;
    const Run run = share_of_block(a_, kHidden / 8);
    const bf16* row = a_.mixed.of(epoch_) + static_cast<int64_t>(me.group) * K + me.value();
    uint4 x[kOutSteps];
    bool waits;
    do {
      waits = false;
#pragma unroll
      for (int s = 0; s < kOutSteps; ++s)
        x[s] = me.group < a_.tokens && s < steps ? peek16(row + value_of_step(s)) : uint4{};
#pragma unroll
      for (int s = 0; s < kOutSteps; ++s) waits |= unwritten(x[s]);
    } while (__any_sync(0xffffffffu, waits));
    Sums acc;
    if (run.first < run.end) {
#pragma unroll
      for (int s = 0; s < kOutSteps; s += 2) {
        if (s >= steps) break;
        stream_.wait();
        acc.add(stream_.weights(me, 0), x[s], 0);
        acc.add(stream_.weights(me, 1), x[s + 1], 1);
        stream_.release(me);
        stream_.pass_one();
      }
    }
    put_partial(me, 0, acc);
    sync_consumers();
    add_to_residual(me, run, a_.mid);
  }
  __device__ void combine() {
    fence();
    down();
  }

 private:
  enum Product { kInput, kRouter, kGateUp };

  // This lane's tokens, as the norm of the residual. A warp norms its 256 values of a token, 8 in a
  // lane, and deals them out.
  __device__ void load_normed(bool experts, Tokens& x) {
    const Lane me;
    const float* weight = experts ? layer_.post_norm : layer_.input_norm;
    const bool plain = !experts && index_ == 0;  // what the launch was given
    const bf16* residual = plain     ? a_.residual
                           : experts ? a_.mid.of(epoch_)
                                     : a_.end.of(epoch_ - 1);
    const int first = me.lane / 8 * kStageValues + me.warp * 2 * kStep + me.lane % 8 * 8;
    float of[8];
    load_floats(weight + first, of);
#pragma unroll
    for (float& w : of) w += a_.shape.one_plus ? 1.0f : 0.0f;
    uint4 mine[kMaxTokens];
    bool waits;
    do {
      waits = false;
#pragma unroll
      for (int t = 0; t < kMaxTokens; ++t)
        if (t < a_.tokens) mine[t] = peek16(residual + t * kHidden + first);
#pragma unroll
      for (int t = 0; t < kMaxTokens; ++t)
        if (t < a_.tokens) waits |= unwritten(mine[t]);
    } while (!plain && __any_sync(0xffffffffu, waits));
#pragma unroll
    for (int t = 0; t < kMaxTokens; ++t) {
      if (t >= a_.tokens) break;
      float v[8], squares = 0;
      widen(mine[t], v);
#pragma unroll
      for (int e = 0; e < 8; ++e) squares = fmaf(v[e], v[e], squares);
      squares = warp_sum(squares);
      if (me.lane == 0) shared_.squares[t][me.warp] = squares;
    }
    sync_consumers();
#pragma unroll
    for (int s = 0; s < kHiddenSteps; ++s) x.of[s] = {};
#pragma unroll
    for (int t = 0; t < kMaxTokens; ++t) {
      if (t >= a_.tokens) break;
      const float4* sums = reinterpret_cast<const float4*>(shared_.squares[t]);
      const float4 low = sums[0], high = sums[1];
      const float squares = low.x + low.y + low.z + low.w + (high.x + high.y + high.z + high.w);
      const float scale = rsqrtf(squares / kHidden + a_.shape.eps);
      float v[8];
      widen(mine[t], v);
#pragma unroll
      for (int e = 0; e < 8; ++e) v[e] *= scale * of[e];
      __syncwarp();
      shared_.staged[me.warp][me.lane] = narrow(v);
      __syncwarp();
      if (me.group == t) {
#pragma unroll
        for (int s = 0; s < kHiddenSteps; ++s) x.of[s] = shared_.staged[me.warp][s * 4 + me.quad];
      }
    }
    sync_consumers();  // `staged` lies where `partial` does
  }

  // The warp's sums of a tile of 16 rows.
  __device__ void put_partial(const Lane& me, int tile, const Sums& sums) {
    if (2 * me.quad >= kMaxTokens) return;
#pragma unroll
    for (int e = 0; e < 4; ++e)
      shared_.partial[tile & 1][2 * me.quad + e % 2][me.group + e / 2 * 8][me.warp] = sums.total(e);
  }
  __device__ float total(int tile, int token, int row) const {
    const float4* of = reinterpret_cast<const float4*>(shared_.partial[tile & 1][token][row]);
    const float4 a = of[0], b = of[1];
    return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
  }

  __device__ void product(Product now, const Tokens& x) {
    const int I = a_.shape.moe.intermediate;
    const int rows = now == kInput    ? a_.in_row
                     : now == kRouter ? a_.router_rows
                                      : shared_.routing.items.count * I;
    const Lane me;
    const int stride = now == kGateUp ? 1 : 2;
    const Run run = share_of_block(a_, rows / 8);
    int tile = 0;
#pragma unroll 1
    for (int i = run.first; i < run.end; i += stride, ++tile) {
      Sums acc;
#pragma unroll
      for (int s = 0; s < kHiddenSteps; s += 2) {
        stream_.wait();
        acc.add(stream_.weights(me, 0), x.of[s], 0);
        acc.add(stream_.weights(me, 1), x.of[s + 1], 1);
        stream_.release(me);
        stream_.pass_one();
      }
      put_partial(me, tile, acc);
      sync_consumers();
      if (me.warp * 2 < a_.tokens) finish(now, me, tile, i, run.end);  // a warp has two tokens
    }
  }
  // A thread has one of the sums of a tile: of 16 rows from group i of 8 on, or of 8 rows of gate
  // and the same of up.
  __device__ void finish(Product now, const Lane& me, int tile, int i, int end) {
    const int token = me.thread / 16, row = me.thread % 16, I = a_.shape.moe.intermediate;
    const float sum = total(tile, token, row);
    const bool here = token < a_.tokens && (now == kGateUp || row < 8 || i + 1 < end);
    if (now == kRouter) {
      if (here)
        publish(a_.logits, epoch_, token * a_.router_rows + i * 8 + row, __float_as_uint(sum));
      return;
    }
    // Two values a word: the even rows' threads write.
    float value = sum;
    if (now == kGateUp) value = silu(sum) * __shfl_down_sync(0xffffffffu, sum, 8);
    const uint32_t word = pack_bf16(value, __shfl_down_sync(0xffffffffu, value, 1));
    if (!here || row % 2 != 0) return;
    if (now == kInput) {
      publish(a_.in, epoch_, (token * a_.in_row + i * 8 + row) / 2, word);
    } else if (row < 8) {
      const int item = i / (I / 8), at = (i - item * (I / 8)) * 8 + row;
      const int slot = shared_.routing.items.slot[item][token];
      if (slot >= 0)
        publish(a_.activation, epoch_, ((token * a_.shape.moe.top_k + slot) * I + at) / 2, word);
    }
  }

  // A block has two groups of 8 rows at most, and keeps their residual.
  __device__ void add_to_residual(const Lane& me, const Run& run, const Twice<bf16>& to) {
    const int token = me.thread / 16, row = me.thread % 16;
    if (me.warp * 2 >= a_.tokens) return;
    bf16& residual = shared_.residual[token][row];
    residual = __float2bfloat16(__bfloat162float(residual) + total(0, token, row));
    const float value = __bfloat162float(residual);
    const uint32_t word = pack_bf16(value, __shfl_down_sync(0xffffffffu, value, 1));
    if (token < a_.tokens && row % 2 == 0 && run.first + row / 8 < run.end)
      publish(to, epoch_, (token * kHidden + run.first * 8 + row) / 2, word);
  }

  // residual += the tokens' experts' outputs, weighted, in the order of the experts: a block has
  // its rows of all experts.
  __device__ void down() {
    constexpr int kAhead = 3;  // items whose activations are on their way
    using Inputs = uint4[kMaxExpertSteps];
    const Items& items = shared_.routing.items;
    const Lane me;
    const int I = a_.shape.moe.intermediate, k = a_.shape.moe.top_k;
    const bf16* activation = a_.activation.of(epoch_) + me.value();
    const auto slot_of = [&](int item, int t) {
      return item < items.count && t < a_.tokens ? items.slot[item][t] : -1;
    };
    const auto load = [&](int item, Inputs& x) {
      const int slot = slot_of(item, me.group);
      const bf16* row = activation + static_cast<int64_t>(me.group * k + slot) * I;
#pragma unroll
      for (int s = 0; s < kMaxExpertSteps; ++s)  // beyond I stages have zeros
        x[s] = slot >= 0 && me.value() + value_of_step(s) < I ? peek16(row + value_of_step(s))
                                                              : uint4{};
    };
    Sums sum;
    const auto multiply = [&](int item, Inputs& x) {
      while (true) {
        bool waits = false;
#pragma unroll
        for (int s = 0; s < kMaxExpertSteps; ++s) waits |= unwritten(x[s]);
        if (!__any_sync(0xffffffffu, waits)) break;
        load(item, x);
      }
      Sums acc;
#pragma unroll
      for (int s = 0; s < kMaxExpertSteps; s += 2) {
        if (s / 2 * kStageValues >= I) break;
        stream_.wait();
        acc.add(stream_.weights(me, 0), x[s], 0);
        acc.add(stream_.weights(me, 1), x[s + 1], 1);
        stream_.release(me);
        stream_.pass_one();
      }
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int t = 2 * me.quad + e, slot = slot_of(item, t);
        const float weight = slot >= 0 ? items.weights[t * k + slot] : 0.0f;
        sum.of[0][e] = fmaf(weight, acc.total(e), sum.of[0][e]);
        sum.of[0][e + 2] = fmaf(weight, acc.total(e + 2), sum.of[0][e + 2]);
      }
    };
    const Run run = share_of_block(a_, kHidden / 8);
    if (run.first < run.end) {
      Inputs x[kAhead];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) load(j, x[j]);
#pragma unroll 1
      for (int first = 0; first < items.count; first += kAhead) {
#pragma unroll
        for (int j = 0; j < kAhead; ++j) {
          if (first + j >= items.count) break;
          multiply(first + j, x[j]);
          load(first + j + kAhead, x[j]);
        }
      }
    }
    put_partial(me, 0, sum);
    sync_consumers();
    add_to_residual(me, run, a_.end);
  }

  Shared& shared_;
  const Args& a_;
  const FusedLayer& layer_;
  const int index_;
  const uint32_t epoch_;
  Stream stream_;
};

}  // namespace vamp::cuda::fused
