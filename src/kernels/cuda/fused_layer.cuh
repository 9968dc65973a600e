// A layer of the fused decode step, as the consumers of a block go through it.
#pragma once

#include "kernels/cuda/fused_attention.cuh"
#include "kernels/cuda/fused_delta.cuh"
#include "kernels/cuda/fused_exchange.cuh"
#include "kernels/cuda/fused_finish.cuh"
#include "kernels/cuda/fused_join.cuh"
#include "kernels/cuda/fused_kinds.cuh"
#include "kernels/cuda/fused_routing.cuh"
#include "kernels/cuda/fused_stream.cuh"
#include "kernels/cuda/fused_trace.cuh"
#include "kernels/cuda/skinny_gemm.cuh"

namespace vamp::cuda::fused {

// What a layer with attention has, and one with Gated DeltaNet.
template <typename Kind>
union MixerShared {
  PieceShared<Kind> attention;
  DeltaShared delta;
};
template <>
union MixerShared<Qwen3Kind> {
  PieceShared<Qwen3Kind> attention;
};

template <typename Kind>
struct Shared {
  Ring ring;
  Handover handover;
  union {
    uint4 staged[kWarps][32];  // a token's values of a warp
    float4 joined[kWarps][32];
    uint2 candidates[kMaxTokens][32];
  };
  Args args;  // here the compiler does not keep them in registers throughout
  FusedDecode::Layer layers[2];
  int32_t slots[kMaxTokens], starts[kMaxTokens];  // of the batch
  Unit unit;
  Join joins[kWarps];
  RoutingShared<Kind> routing;
  MixerShared<Kind> mixer;
};

// Where a consumer stands, in one register from phase to phase.
struct Progress {
  Position stage;
  Handover::Place sums;
  __device__ static Progress from(uint32_t bits) {
    Progress p;
    p.stage.at = static_cast<int>(bits & 0xff);
    p.sums.at = static_cast<int>(bits >> 8 & 0xff);
    p.stage.parity = bits >> 16 & 1;
    p.sums.parity = bits >> 17 & 1;
    return p;
  }
  __device__ uint32_t bits() const {
    return static_cast<uint32_t>(stage.at) | static_cast<uint32_t>(sums.at) << 8 |
           stage.parity << 16 | sums.parity << 17;
  }
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
  __device__ __forceinline__ void add(const Weights& w, const uint4& x0, const uint4& x1) {
    add_step(0, w.low[0], w.high[0], x0);
    add_step(1, w.low[1], w.high[1], x1);
  }
  __device__ __forceinline__ void add_step(int to, const uint4& low, const uint4& high,
                                           const uint4& x) {
    skinny::mma(of[to], low.x, high.x, low.y, high.y, x.x, x.y);
    skinny::mma(of[to], low.z, high.z, low.w, high.w, x.z, x.w);
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
// two of them do alike stands once: the code that a layer goes through must fit 128 KB, or it is
// fetched anew in every layer, three times as slowly.
template <typename Kind>
class Phase {
 public:
  __device__ Phase(Shared<Kind>& shared, int layer, const Progress& at)
      : shared_(shared),
        a_(shared.args),
        layer_(shared.layers[layer & 1]),
        index_(static_cast<uint32_t>(layer)),
        stream_(shared.ring, at.stage),
        sums_(at.sums) {}
  __device__ Progress progress() const { return {stream_.position(), sums_}; }

  // The products with the normed residual: of the input projection, or of the router and then of
  // the experts that it chose.
  __device__ void normed(bool experts) {
    const Lane me;
    Tokens x;
    load_normed(me, experts, x);
    trace(index_, experts ? kMidReady : kInputReady);
    int tiles =
        tiles_of(experts ? a_.router_rows : input_rows(a_, Kind::kMixed && layer_.has_delta()));
#pragma unroll 1
    while (true) {
      product(me, x, tiles);
      trace(index_, !experts ? kInputDone : tiles >= 0 ? kRouterDone : kGateUpDone);
      if (!experts || tiles < 0) break;
      // Nobody needs the layer in front any more: this one's residual took all that they did in it.
      if (static_cast<int>(index_) + 1 < a_.count)
        copy_words(shared_.layers[(index_ + 1) & 1], a_.layers[index_ + 1]);
      choose_experts(a_, layer_, index_, shared_.routing, shared_.candidates);
      if (me.thread == 0) shared_.ring.chosen.arrive();  // the producer may go on
      trace(index_, kChosen);
      if constexpr (Kind::kMixed) {
        if (layer_.has_delta()) keep_inputs(a_, layer_, turn());
      }
      tiles = kDrawn;
    }
  }
  __device__ void attention() {
    attend(a_, layer_, turn(), shared_.unit, stream_, shared_.mixer.attention);
    trace(index_, kPieceTold);
    join_pieces<Kind>(a_, turn(), index_, shared_.joins, shared_.mixer.attention, shared_.joined);
    trace(index_, kMixedTold);
  }
  __device__ void delta() {
    run_delta(a_, layer_, turn(), index_, stream_, shared_.mixer.delta);
    trace(index_, kMixedTold);
  }
  // residual += mixed outᵀ
  __device__ void output() {
    const int K = a_.out_width, steps = K / (kWarps * kStep);
    const Lane me;
    const Run run = share_of_block(a_, kHidden / 8);
    const bf16* row = a_.mixed.of(index_) + static_cast<int64_t>(me.group) * K + me.value();
    uint4 x[kOutSteps], squares{};
    const float* const of_head =
        Kind::kMixed && layer_.has_delta() ? squares_of_head(a_, turn(), me) : nullptr;
    bool waits;
    do {
      waits = false;
      if (Kind::kMixed && of_head) {
        squares = peek16(of_head);
        waits = unwritten(squares);
      }
#pragma unroll
      for (int s = 0; s < kOutSteps; ++s)
        x[s] = me.group < a_.tokens && s < steps ? peek16(row + value_of_step(s)) : uint4{};
#pragma unroll
      for (int s = 0; s < kOutSteps; ++s) waits |= unwritten(x[s]);
    } while (__any_sync(0xffffffffu, waits));
    trace(index_, kMixedArrived);
    const float scale = Kind::kMixed && of_head ? scale_of_head(squares, layer_) : 1.0f;
    Sums acc;
    if (run.first < run.end) {
      each_chunk<kOutSteps / 2>(me, steps / 2, [&](int c, const Weights& w) {
        if constexpr (Kind::kMixed) {
          Sums scaled;
          scaled.add(w, x[2 * c], x[2 * c + 1]);
#pragma unroll
          for (int e = 0; e < 2; ++e) {  // of the sums' token, from the lane that has the head's
            const float by = __shfl_sync(0xffffffffu, scale, c * 4 + (2 * me.quad + e) % 4);
            acc.of[0][e] = fmaf(by, scaled.total(e), acc.of[0][e]);
            acc.of[0][e + 2] = fmaf(by, scaled.total(e + 2), acc.of[0][e + 2]);
          }
        } else {
          acc.add(w, x[2 * c], x[2 * c + 1]);
        }
      });
    }
    hand_over(me, acc);
    trace(index_, kOutputDone);
  }
  // residual += the tokens' experts' outputs, in the order of the experts: a block has its rows of
  // all experts (see units_of_expert). The activations are weighted already.
  __device__ void down() {
    const Items& items = shared_.routing.items;
    const Lane me;
    const int I = a_.shape.moe.intermediate, k = a_.shape.moe.top_k, of_expert = units_of_expert(I),
              all = items.count * of_expert;
    const int inverse = 65536 / of_expert + 1;  // unit / of_expert is unit * inverse / 65536
    static_assert(kMaxPairs * kStageUnits < 65536 / 4);
    const auto item_of = [&](int unit) { return unit * inverse >> 16; };
    // The first of the warp's values of a unit, of its expert's; I or more: none.
    const auto value_of = [&](int unit) {
      return unit < all ? (unit - item_of(unit) * of_expert) * kUnitValues + me.warp * kStep : I;
    };
    // The lanes of a group bring a stage's activations of one token: so many stages at a time as
    // leave each token (of 1, 2 or 4) a group.
    const int shift = a_.tokens > 2 ? 2 : a_.tokens - 1, token = me.group & ((1 << shift) - 1);
    const int together = 8 >> shift;
    using Inputs = uint4[kStageUnits];
    const auto load = [&](int first_stage, Inputs& x) {
#pragma unroll
      for (int u = 0; u < kStageUnits; ++u) {
        const int unit = (first_stage + (me.group >> shift)) * kStageUnits + u;
        const int value = value_of(unit);
        const int slot = value < I && token < a_.tokens ? items.slot[item_of(unit)][token] : -1;
        const bf16* row = a_.activation.of(index_) + static_cast<int64_t>(token * k + slot) * I;
        x[u] = slot >= 0 ? peek16(row + value + me.quad * 8) : uint4{};
      }
    };
    const Run run = share_of_block(a_, kHidden / 8);
    const int stages = run.first < run.end ? (all + kStageUnits - 1) / kStageUnits : 0;
    Sums sum;
    Inputs here, next;
    if (stages > 0) load(0, next);
#pragma unroll 1
    for (int first = 0; first < stages; first += together) {
      bool waits = false;
#pragma unroll
      for (int u = 0; u < kStageUnits; ++u) {
        here[u] = next[u];
        waits |= unwritten(here[u]);
      }
      while (__any_sync(0xffffffffu, waits)) {
        load(first, here);
        waits = false;
#pragma unroll
        for (int u = 0; u < kStageUnits; ++u) waits |= unwritten(here[u]);
      }
      if (first + together < stages) load(first + together, next);
#pragma unroll 1
      for (int stage = first; stage < min(first + together, stages); ++stage) {
        const int from = (((stage - first) << shift) + token) * 4 + me.quad;
        Inputs x;
#pragma unroll
        for (int u = 0; u < kStageUnits; ++u) {
          x[u].x = __shfl_sync(0xffffffffu, here[u].x, from);
          x[u].y = __shfl_sync(0xffffffffu, here[u].y, from);
          x[u].z = __shfl_sync(0xffffffffu, here[u].z, from);
          x[u].w = __shfl_sync(0xffffffffu, here[u].w, from);
        }
        // Nothing here waits for the products of the stage in front.
        stream_.wait();
        uint4 low[kStageUnits], high[kStageUnits];
#pragma unroll
        for (int u = 0; u < kStageUnits; ++u) stream_.unit_weights(me, u, low[u], high[u]);
        stream_.release(me);
        stream_.pass_one();
#pragma unroll
        for (int u = 0; u < kStageUnits; ++u)  // where the expert has none may be anything
          if (value_of(stage * kStageUnits + u) < I) sum.add_step(0, low[u], high[u], x[u]);
      }
    }
    // What is read in the layers that follow has been unwritten (fused_exchange.cuh).
    shared_.handover.fenced.wait(index_ & 1);
    hand_over(me, sum);
    trace(index_, kDownDone);
  }

 private:
  // Of what layers of one kind alone tell each other: those of this kind come in turn.
  __device__ uint32_t turn() const {
    return Kind::kMixed ? layer_.before : index_;
  }

  // This lane's tokens, as the norm of the residual but for its scale, which the products' sums are
  // multiplied by: it takes all warps' squares. A warp brings its 256 values of a token, 8 in a
  // lane, and deals them out.
  __device__ void load_normed(const Lane& me, bool experts, Tokens& x) {
    const float* weight = experts ? layer_.post_norm : layer_.input_norm;
    const bool plain = !experts && index_ == 0;  // what the launch was given
    const bf16* residual = plain     ? a_.residual
                           : experts ? a_.mid.of(index_)
                                     : a_.end.of(index_ + kTurns - 1);
    const int first = me.lane / 8 * kChunkValues + me.warp * 2 * kStep + me.lane % 8 * 8;
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
    trace(index_, experts ? kMidArrived : kInputArrived);
#pragma unroll
    for (int s = 0; s < kHiddenSteps; ++s) x.of[s] = {};
#pragma unroll
    for (int t = 0; t < kMaxTokens; ++t) {
      if (t >= a_.tokens) break;
      float v[8], squares = 0;
      widen(mine[t], v);
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        squares = fmaf(v[e], v[e], squares);
        v[e] *= of[e];
      }
      __syncwarp();
      shared_.staged[me.warp][me.lane] = narrow(v);
      squares = warp_sum(squares);
      if (me.lane == 0) shared_.handover.squares[experts][t][me.warp] = squares;
      __syncwarp();
      if (me.group == t) {
#pragma unroll
        for (int s = 0; s < kHiddenSteps; ++s) x.of[s] = shared_.staged[me.warp][s * 4 + me.quad];
      }
    }
  }

  // f(c, its weights) for the next `count` chunks. One's weights are on their way to registers
  // while the one in front is multiplied.
  template <int kMax, typename F>
  __device__ __forceinline__ void each_chunk(const Lane& me, int count, F&& f) {
    stream_.wait();
    Weights next = stream_.weights(me, 0);
#pragma unroll
    for (int c = 0; c < kMax; ++c) {
      const bool last = c + 1 >= count;
      const Weights now = next;
      if (last || (c + 1) % kStageChunks == 0) {
        stream_.release(me);
        stream_.pass_one();
        if (!last) stream_.wait();
      }
      if (!last) next = stream_.weights(me, (c + 1) % kStageChunks);
      if (c < count) f(c, now);
      if (last) break;
    }
  }
  // acc += the next chunks' rows times x, two steps a chunk.
  template <int kSteps>
  __device__ __forceinline__ void multiply(const Lane& me, Sums& acc, const uint4 (&x)[kSteps],
                                           int chunks) {
    each_chunk<kSteps / 2>(me, chunks,
                           [&](int c, const Weights& w) { acc.add(w, x[2 * c], x[2 * c + 1]); });
  }
  // To the finisher.
  __device__ __forceinline__ void hand_over(const Lane& me, const Sums& sums, int tile = 0) {
    const float v[4] = {sums.total(0), sums.total(1), sums.total(2), sums.total(3)};
    shared_.handover.put(me, sums_, v, tile);
  }

  static constexpr int kDrawn = -1;
  // Of 16 rows, of this block's share of so many.
  __device__ int tiles_of(int rows) const {
    const Run run = share_of_block(a_, rows / 8);
    return (run.end - run.first + 1) / 2;
  }
  // So many tiles, or as many of gate and up as the producer draws.
  __device__ void product(const Lane& me, const Tokens& x, int tiles) {
#pragma unroll 1
    for (int n = 0; n != tiles; ++n) {
      int tile = 0;
      if (tiles == kDrawn) {
        stream_.wait();
        tile = stream_.tile();
        if (tile < 0) {
          stream_.release(me);
          stream_.pass_one();
          hand_over(me, {}, tile);
          break;
        }
      }
      Sums acc;
      multiply(me, acc, x.of, kHiddenSteps / 2);
      hand_over(me, acc, tile);
    }
  }

  Shared<Kind>& shared_;
  const Args& a_;
  const FusedDecode::Layer& layer_;
  const uint32_t index_;
  Stream stream_;
  Handover::Place sums_;
};

}  // namespace vamp::cuda::fused
