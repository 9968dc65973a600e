// What a block of the fused decode step reads, in the order in which it will need it: its share of
// each layer's dense weights, of the contexts, of the chosen experts.
//
// One warp, the producer, does nothing but ask for it: the copy unit brings it to a ring of stages
// in shared memory, as far ahead as there are free ones, over the borders of tiles, operations and
// layers, since nobody in the launch writes what is copied. It can't pass a layer's router: there
// it waits for the block to know which experts come next. Eight others, the consumers, take the
// stages in the same order; one more, the finisher, ends their sums (fused_finish.cuh).
//
// A stage holds two times 8 rows of weights and up to 1024 values of each, of which every consumer
// multiplies an eighth, or four pages of a context, each of which one of them attends to, or a
// piece of a Gated DeltaNet's state (fused_delta.cuh). It is as large as it is because the producer
// takes some 300 cycles to ask for anything.
#pragma once

#include "kernels/cuda/fused_decode.h"
#include "kernels/cuda/fused_exchange.cuh"
#include "kernels/cuda/fused_kinds.cuh"
#include "kernels/cuda/pack_bf16.cuh"
#include "kernels/cuda/skinny_gemm.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"

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

struct Ring {
  alignas(1024) char stages[kStages][kStageBytes];  // as the copy unit's swizzle repeats
  Barrier full[kStages], empty[kStages];
  int tile[kStages];  // that a stage of gate and up's begins, -1: no more of them
  Barrier chosen;     // the block knows the layer's experts

  __device__ void init() {
    for (int i = 0; i < kStages; ++i) {
      full[i].init(1);
      empty[i].init(kWarps);
    }
    chosen.init(1);
  }
};

// Where a warp stands in a sequence of uses of kCount things in turn.
template <int kCount>
struct Cyclic {
  int at = 0;
  uint32_t parity = 0;
  __device__ void pass(int count = 1) {  // at most kCount
    at += count;
    if (at < kCount) return;
    at -= kCount;
    parity ^= 1;
  }
};
using Position = Cyclic<kStages>;

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

// The producer's walk through all layers.
template <typename Kind>
class Producer {
  static constexpr int kHeadDim = Kind::kHeadDim, kPageTokens = Kind::kPageTokens;
  static_assert(4 * kHeadDim * kPageTokens == kPageBytes);

 public:
  __device__ Producer(const Args& a, const CUtensorMap& contexts, Ring& ring, const Items& items,
                      const Unit& unit)
      : a_(a),
        contexts_(contexts),
        ring_(ring),
        items_(items),
        unit_(unit),
        lane_(static_cast<int>(threadIdx.x) % 32) {
    at_.parity = 1;  // the first wait for a stage is for its being new
    if (unit.token >= 0) first_pages_ = find_page(unit.first + lane_);
  }

  __device__ void run() {
    const FusedShape& shape = a_.shape;
    const int I = shape.moe.intermediate;
#pragma unroll 1
    for (int l = 0; l < a_.count; ++l) {
      const FusedDecode::Layer& layer = a_.layers[l];
      const bool delta = Kind::kMixed && layer.has_delta();
      const FusedDecode::Maps& maps = a_.maps[l];
      if (l + 1 < a_.count && lane_ < static_cast<int>(sizeof(maps) / sizeof(CUtensorMap)))
        prefetch_map(reinterpret_cast<const CUtensorMap*>(a_.maps + l + 1)[lane_]);
#pragma unroll 1
      for (int part = kIn; part <= kDown; ++part) {
        if (part == kContext) {
          if (delta)
            states(layer);
          else if (unit_.token >= 0)
            context(static_cast<int>(layer.cache_layer));
          continue;
        }
        if (part == kGateUp) {
          if (l + 1 < a_.count) prefetch_vectors(a_.layers[l + 1]);
          ring_.chosen.wait(static_cast<uint32_t>(l) & 1);
        }
        if (part == kGateUp) {
          if (lane_ == 0) draw_tiles(maps.gate_up, a_.drawn + l);
          continue;
        }
        const bool down = part == kDown;
        const CUtensorMap& map = part == kIn       ? maps.in
                                 : part == kOut    ? maps.out
                                 : part == kRouter ? maps.router
                                                   : maps.down;
        const int groups = part == kIn       ? (delta ? a_.delta_row : a_.in_row) / 8
                           : part == kRouter ? a_.router_rows / 8
                                             : kHidden / 8;
        const int K = part == kOut ? a_.out_width : down ? I : kHidden;
        const Run run = share_of_block(a_, groups);
#pragma unroll 1
        for (int i = run.first; i < run.end; i += 2) {
#pragma unroll 1
          for (int item = 0; item < (down ? items_.count : 1); ++item)
            rows_of(map, down ? items_.expert[item] : 0, i * 8, i + 1 < run.end ? i * 8 + 8 : -1,
                    K);
        }
      }
    }
  }

 private:
  enum Part { kIn, kContext, kOut, kRouter, kGateUp, kDown };

  // A line of the cache of each norm's weights, and of given logits, to L2: a block one of them.
  __device__ void prefetch_vectors(const FusedLayer& layer) {
    constexpr int kLine = 32;  // floats
    const int line = static_cast<int>(blockIdx.x) * kLine;
    const float* weight = lane_ == 0   ? layer.input_norm
                          : lane_ == 1 ? layer.post_norm
                          : lane_ == 2 ? layer.q_norm
                          : lane_ == 3 ? layer.k_norm
                                       : nullptr;
    int length = lane_ < 2 ? kHidden : kHeadDim;
    if (Kind::kMixed && lane_ >= 4) {
      weight = lane_ == 4   ? layer.delta.norm
               : lane_ == 5 ? layer.delta.a_log
               : lane_ == 6 ? layer.delta.dt_bias
                            : nullptr;
      length = lane_ == 4 ? kDeltaDim : a_.shape.delta.value_heads;
    }
    if (lane_ == 7) {
      weight = layer.logits;
      length = a_.tokens * a_.shape.moe.experts;
    }
    if (weight && line < length) asm volatile("prefetch.global.L2 [%0];" ::"l"(weight + line));
  }
  // Gate and up of the chosen experts, a tile 8 rows of each. Most are shared out evenly;
  // multiprocessors are not equally fast, so the last ones are drawn. Lane 0.
  __device__ void draw_tiles(const CUtensorMap& map, uint32_t* drawn) {
    const int I = a_.shape.moe.intermediate, per_item = I / 8, all = items_.count * per_item;
    const int blocks = static_cast<int>(gridDim.x);
    const auto even = static_cast<int>(__umulhi(static_cast<uint32_t>(all), a_.blocks_inverse));
    const int own = even - (even + 7) / 8;
    const auto draw = [&] { return blocks * own + static_cast<int>(atomicAdd(drawn, 1u)); };
    int tile = own > 0 ? static_cast<int>(blockIdx.x) * own : draw();
#pragma unroll 1
    for (int n = 1; tile < all; ++n) {
      const int next = n < own ? tile + 1 : draw();  // there when this one has been asked for
      const int item = tile / per_item, row = (tile - item * per_item) * 8;
      ring_.empty[at_.at].wait(at_.parity);
      ring_.tile[at_.at] = tile;
      rows_of(map, items_.expert[item], row, row + I, kHidden);
      tile = next;
    }
    ring_.empty[at_.at].wait(at_.parity);
    ring_.tile[at_.at] = -1;
    ring_.full[at_.at].arrive();
    at_.pass();
  }
  // 8 rows from `low` on and 8 from `high` on (-1: none), K values each, of an expert's matrix, by
  // lane 0 alone: copies of several lanes are issued one by one anyway.
  __device__ void rows_of(const CUtensorMap& map, int expert, int low, int high, int K) {
    if (lane_ != 0) return;
    const uint32_t half = 16 * min(K, kStageValues), bytes = high < 0 ? half : 2 * half;
    const int together = bytes > kStageBytes / 2   ? kBytesInFlight / kStageBytes
                         : bytes > kStageBytes / 4 ? kBytesInFlight / (kStageBytes / 2)
                                                   : kStages;
#pragma unroll 1
    for (int k = 0; k < K; k += kStageValues) {
      Barrier& full = ring_.full[at_.at];
      char* const stage = ring_.stages[at_.at];
      ring_.empty[at_.at].wait(at_.parity);
      // Of the stages in front only so many may still be on their way.
      if (together < kStages) {
        Position landed = at_;
        if ((landed.at -= together) < 0) {
          landed.at += kStages;
          landed.parity ^= 1;
        }
        ring_.full[landed.at].wait(landed.parity ^ 1);
      }
      full.arrive_expecting(bytes);
      copy(stage, map, full, low, k, expert);
      if (high >= 0) copy(stage + kHalfStageBytes, map, full, high, k, expert);
      at_.pass();
    }
  }
  // Where a page of the block's run is in the arena, in values, but for the layer.
  __device__ int64_t find_page(int page) const {
    const KvLayout& layout = a_.batch.cache.layout;
    const int32_t* ids = a_.batch.attention.block_ids + a_.batch.attention.block_start[unit_.token];
    const int token = page * kPageTokens;
    if (page >= unit_.end) return 0;
    return ids[token / layout.block_tokens] * layout.block_stride() +
           layout.k_offset(0, unit_.kv_head, token % layout.block_tokens);
  }
  // The block's pages, keys, then values: a lane each of 32 of them, of which the first ones are
  // the same in all layers.
  __device__ void context(int layer) {
    const KvLayout& layout = a_.batch.cache.layout;
    const auto of_layer = static_cast<int>(
        (layout.k_offset(layer, unit_.kv_head, 0) - layout.k_offset(0, unit_.kv_head, 0)) /
        kHeadDim);
    const auto to_values = static_cast<int>(layout.v_offset() / kHeadDim);
    at_.at = __shfl_sync(0xffffffffu, at_.at, 0);
    at_.parity = __shfl_sync(0xffffffffu, at_.parity, 0);
#pragma unroll 1
    for (int first = unit_.first; first < unit_.end; first += 32) {
      const int64_t place = first == unit_.first ? first_pages_ : find_page(first + lane_);
      const int row = static_cast<int>(place / kHeadDim) + of_layer;
      const int pages = min(32, unit_.end - first);
#pragma unroll 1
      for (int s = 0; s < pages; s += kStagePages) {
        const int here = min(kStagePages, pages - s);
        Barrier& full = ring_.full[at_.at];
        if (lane_ == 0) {
          ring_.empty[at_.at].wait(at_.parity);
          full.arrive_expecting(static_cast<uint32_t>(here * kPageBytes));
        }
        __syncwarp();
        if (lane_ >= s && lane_ < s + here) {
          char* const to = ring_.stages[at_.at] + (lane_ - s) * kPageBytes;
          copy(to, contexts_, full, row, 0, 0);
          copy(to + kPageBytes / 2, contexts_, full, row + to_values, 0, 0);
        }
        __syncwarp();
        at_.pass();
      }
    }
  }
  // The states of the block's units, whose convolutions' weights and inputs come to L2.
  __device__ void states(const FusedLayer& layer) {
    const GatedDeltaShape& shape = a_.shape.delta;
    const int units = delta_units(a_);
#pragma unroll 1
    for (int u = static_cast<int>(blockIdx.x); u < units; u += static_cast<int>(gridDim.x)) {
      const DeltaUnit unit(a_, u);
      const int part = lane_ % 4;  // q, k, v
      const int first = part < 2 ? (part * shape.key_heads + unit.key) * kDeltaDim
                                 : 2 * shape.key_heads * kDeltaDim + unit.head * kDeltaDim +
                                       unit.quarter * kQuarter,
                channels = part < 2 ? kDeltaDim : kQuarter;
      if (lane_ < 8 && part < 3) {
        if (lane_ < 4)
          prefetch(layer.delta.conv + first * kDeltaWidth, channels * kDeltaWidth * 4);
        else
          prefetch(unit.conv_state(a_, layer, first), channels * (kDeltaWidth - 1) * 2);
      }
      if (lane_ == 0) {
        Barrier& full = ring_.full[at_.at];
        ring_.empty[at_.at].wait(at_.parity);
        full.arrive_expecting(kStateBytes);
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
            "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(ring_.stages[at_.at])),
            "l"(unit.state(a_, layer)), "n"(kStateBytes), "r"(shared_address(&full.state)),
            "l"(kReadOnce)
            : "memory");
        at_.pass();
      }
      __syncwarp();
    }
  }
  __device__ static void prefetch(const void* from, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes));
  }
  __device__ static void copy(void* to, const CUtensorMap& map, Barrier& full, int row, int col,
                              int matrix) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared_address(to)),
        "l"(&map), "r"(shared_address(&full.state)), "r"(0), "r"(row), "r"(col / kTensorMapCols),
        "r"(matrix), "l"(kReadOnce)
        : "memory");
  }

  // A cache policy (createpolicy.fractional.L2::evict_first): a step reads everything once, and the
  // code of the kernels and what blocks tell each other should stay in L2.
  static constexpr uint64_t kReadOnce = 0x12f0000000000000;

  const Args& a_;
  const CUtensorMap& contexts_;
  Ring& ring_;
  const Items& items_;
  const Unit& unit_;
  const int lane_;
  Position at_;
  int64_t first_pages_ = 0;
};

// Who a thread is. Asked anew in each phase, so that nothing computed from it is kept in registers
// from one to the next.
struct Lane {
  int thread, warp, lane, group, quad;
  __device__ __forceinline__ Lane() {
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    warp = thread / 32;
    lane = thread % 32;
    group = lane / 4;
    quad = lane % 4;
  }
  // The first of this lane's 8 values in a row: its step s begins value_of_step(s) further.
  __device__ int value() const { return warp * 2 * kStep + quad * 8; }
};
__device__ __forceinline__ constexpr int value_of_step(int step) {
  return step / 2 * kChunkValues + step % 2 * kStep;
}

// Of a warp's two steps of a chunk, 8 values each of rows `group` and 8 further.
struct Weights {
  uint4 low[2], high[2];
};

// A consumer's end.
class Stream {
 public:
  __device__ Stream(Ring& ring, Position at) : ring_(ring), at_(at) {}
  __device__ Position position() const { return at_; }

  __device__ void wait() { ring_.full[at_.at].wait(at_.parity); }
  __device__ __forceinline__ Weights weights(const Lane& lane, int chunk) const {
    const char* from =
        ring_.stages[at_.at] + (chunk * kWarps + lane.warp) * (8 * 128) + lane.group * 128;
    Weights w;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      const char* values = from + ((step * 4 + lane.quad) ^ lane.group) * 16;
      w.low[step] = *reinterpret_cast<const uint4*>(values);
      w.high[step] = *reinterpret_cast<const uint4*>(values + kHalfStageBytes);
    }
    return w;
  }
  // Of gate and up, see Ring::tile.
  __device__ int tile() const {
    return ring_.tile[at_.at];
  }
  __device__ char* stage() {
    return ring_.stages[at_.at];
  }
  __device__ int number() const {
    return at_.at;
  }
  // The warp has done with the stage: with all that is its in it, or with a page.
  __device__ void release(const Lane& lane, int parts = 1) {
    __syncwarp();
    if (lane.lane == 0) {
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(
                       shared_address(&ring_.empty[at_.at].state)),
                   "r"(parts)
                   : "memory");
    }
  }
  __device__ void release_page(const Lane& lane) {
    release(lane, kWarps / kStagePages);
  }
  __device__ void pass(int count) {
#pragma unroll 1
    for (; count > 0; count -= kStages) at_.pass(min(count, kStages));
  }
  __device__ void pass_one() {
    at_.pass();
  }

 private:
  Ring& ring_;
  Position at_;
};

__device__ __forceinline__ void widen(const uint4& v, float (&x)[8]) {
  const uint32_t w[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    x[2 * i] = bf16_low(w[i]);
    x[2 * i + 1] = bf16_high(w[i]);
  }
}
__device__ __forceinline__ uint4 narrow(const float (&x)[8]) {
  return {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]),
          pack_bf16(x[6], x[7])};
}

__device__ __forceinline__ void load_floats(const float* p, float (&x)[8]) {
  const float4 low = __ldg(reinterpret_cast<const float4*>(p)),
               high = __ldg(reinterpret_cast<const float4*>(p) + 1);
  x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
  x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
}

// For the consumers alone, and for them and the finisher.
__device__ __forceinline__ void sync_consumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
}
__device__ __forceinline__ void sync_with_finisher() {
  asm volatile("bar.sync 2, %0;" ::"n"(kConsumers + 32) : "memory");
}

}  // namespace vamp::cuda::fused
