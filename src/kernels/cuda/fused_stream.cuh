// What a block of the fused decode step reads, in the order in which it will need it: its share of
// each layer's dense weights, of the contexts, of the chosen experts.
//
// One warp, the producer, does nothing but ask for it: the copy unit brings it to a ring of stages
// in shared memory, as far ahead as there are free ones, over the borders of tiles, operations and
// layers, since nobody in the launch writes what is copied. It can't pass a layer's router: there
// it waits for the block to know which experts come next. The other warps, the consumers, take the
// stages in the same order.
//
// A stage holds two times 8 rows of weights and up to 512 values of each, of which every consumer
// multiplies an eighth, or a page of a context, which one of them attends to.
#pragma once

#include "kernels/cuda/fused_decode.h"
#include "kernels/cuda/fused_exchange.cuh"
#include "kernels/cuda/pack_bf16.cuh"
#include "kernels/cuda/skinny_gemm.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"

namespace vamp::cuda::fused {

using bf16 = __nv_bfloat16;

constexpr int kWarps = 8, kConsumers = kWarps * 32, kThreads = kConsumers + 32;
constexpr int kStep = 32;                         // values of a row in one step of a warp
constexpr int kStageValues = 2 * kStep * kWarps;  // of a row, at most
constexpr int kHalfStageBytes = 8 * kStageValues * 2, kStageBytes = 2 * kHalfStageBytes;
constexpr int kStages = 13;
constexpr int kHidden = 2048;                             // of the model
constexpr int kHiddenSteps = kHidden / (kWarps * kStep);  // of a warp, in a row of so many values
constexpr int kOutSteps = 16;  // in a row of heads * head_dim values, at most
constexpr int kMaxExpertSteps = 4;
constexpr int kMaxPairs = 64;  // tokens * top_k
constexpr int kHeadDim = 128;
constexpr int kMaxRows = 8;                         // query heads of a KV head
constexpr int kPageBytes = 8192, kPageTokens = 16;  // of a context: keys, then values
constexpr int kMaxTokens = FusedDecode::kMaxTokens;

struct Args {
  FusedShape shape;
  FusedBatch batch;
  const FusedLayer* layers;
  const FusedDecode::Maps* maps;
  int count, tokens;
  int in_row, router_rows, out_width;
  uint32_t blocks_inverse;  // 2^32 / blocks, rounded up
  bf16* residual;
  uint32_t* sync;
  // What blocks tell each other: the input product; attention's pieces and, of each of their rows,
  // the largest score and the sum; its output; the residual after it; the router's logits; the
  // experts' activations; the residual after them.
  Twice<bf16> in;
  Twice<float> partial;
  Twice<float2> scores;
  Twice<bf16> mixed, mid;
  Twice<float> logits;
  Twice<bf16> activation, end;
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
// a page for each warp.
__device__ __forceinline__ int pages_a_piece(int pages, int groups) {
  const int pieces = static_cast<int>(gridDim.x) / groups;
  return max(kWarps, (pages + pieces - 1) / pieces);
}
__device__ inline Unit find_unit(const Args& a) {
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
  Barrier chosen;  // the block knows the layer's experts

  __device__ void init() {
    for (int i = 0; i < kStages; ++i) {
      full[i].init(1);
      empty[i].init(kWarps);
    }
    chosen.init(1);
    fence_barrier_init();
  }
};

// Where a warp stands in the sequence of stages.
struct Position {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void pass(int count) {  // at most kStages
    stage += count;
    if (stage < kStages) return;
    stage -= kStages;
    parity ^= 1;
  }
};

// The producer's walk through all layers.
class Producer {
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
  }

  __device__ void run() {
    const FusedShape& shape = a_.shape;
    const int I = shape.moe.intermediate;
#pragma unroll 1
    for (int l = 0; l < a_.count; ++l) {
      const FusedLayer& layer = a_.layers[l];
      const FusedDecode::Maps& maps = a_.maps[l];
      if (l + 1 < a_.count && lane_ < static_cast<int>(sizeof(maps) / sizeof(CUtensorMap)))
        prefetch_map(reinterpret_cast<const CUtensorMap*>(a_.maps + l + 1)[lane_]);
#pragma unroll 1
      for (int part = kIn; part <= kDown; ++part) {
        if (part == kContext) {
          if (unit_.token >= 0) context(static_cast<int>(layer.cache_layer));
          continue;
        }
        if (part == kGateUp) {
          if (l + 1 < a_.count) prefetch_norms(a_.layers[l + 1]);
          ring_.chosen.wait(static_cast<uint32_t>(l) & 1);
        }
        const bool gate_up = part == kGateUp, down = part == kDown;
        const CUtensorMap& map = part == kIn       ? maps.in
                                 : part == kOut    ? maps.out
                                 : part == kRouter ? maps.router
                                 : gate_up         ? maps.gate_up
                                                   : maps.down;
        const int groups = part == kIn       ? a_.in_row / 8
                           : part == kRouter ? a_.router_rows / 8
                           : gate_up         ? items_.count * (I / 8)
                                             : kHidden / 8;
        const int K = part == kOut ? a_.out_width : down ? I : kHidden;
        const Run run = share_of_block(a_, groups);
#pragma unroll 1
        for (int i = run.first; i < run.end; i += gate_up ? 1 : 2) {
          int item = gate_up ? i / (I / 8) : 0;
          const int low = (gate_up ? i - item * (I / 8) : i) * 8;
          const int high = gate_up ? low + I : i + 1 < run.end ? low + 8 : -1;
#pragma unroll 1
          for (const int end = down ? items_.count : item + 1; item < end; ++item)
            rows_of(map, gate_up || down ? items_.expert[item] : 0, low, high, K);
        }
      }
    }
  }

 private:
  enum Part { kIn, kContext, kOut, kRouter, kGateUp, kDown };

  // A line of the cache of each norm's weights to L2: a block one of them.
  __device__ void prefetch_norms(const FusedLayer& layer) {
    constexpr int kLine = 32;  // floats
    const int line = static_cast<int>(blockIdx.x) * kLine;
    const float* weight = lane_ == 0   ? layer.input_norm
                          : lane_ == 1 ? layer.post_norm
                          : lane_ == 2 ? layer.q_norm
                          : lane_ == 3 ? layer.k_norm
                                       : nullptr;
    if (weight && line < (lane_ < 2 ? kHidden : kHeadDim))
      asm volatile("prefetch.global.L2 [%0];" ::"l"(weight + line));
  }
  // 8 rows from `low` on and 8 from `high` on (-1: none), K values each, of an expert's matrix.
  // (Lane 0 alone does it: copies of several lanes are issued one by one anyway.) Two stages are
  // asked for together, so that the memory sees neighbours.
  __device__ void rows_of(const CUtensorMap& map, int expert, int low, int high, int K) {
    if (lane_ != 0) return;
#pragma unroll 1
    for (int k = 0; k < K; k += 2 * kStageValues) {
      Position next = at_;
      next.pass(1);
      ring_.empty[at_.stage].wait(at_.parity);
      const bool both = k + kStageValues < K;
      if (both) ring_.empty[next.stage].wait(next.parity);
      bring(map, expert, low, high, k);
      if (both) bring(map, expert, low, high, k + kStageValues);
    }
  }
  __device__ void bring(const CUtensorMap& map, int expert, int low, int high, int k) {
    Barrier& full = ring_.full[at_.stage];
    char* const stage = ring_.stages[at_.stage];
    full.arrive_expecting(high < 0 ? kHalfStageBytes : kStageBytes);
    copy(stage, map, full, low, k, expert);
    if (high >= 0) copy(stage + kHalfStageBytes, map, full, high, k, expert);
    at_.pass(1);
  }
  // The block's pages, keys, then values.
  __device__ void context(int layer) {
    const KvLayout& layout = a_.batch.cache.layout;
    const int32_t* ids = a_.batch.attention.block_ids + a_.batch.attention.block_start[unit_.token];
    int my_ids = 0;  // of 32 pages
#pragma unroll 1
    for (int page = unit_.first; page < unit_.end; ++page) {
      const int index = (page - unit_.first) % 32;
      if (index == 0)
        my_ids =
            page + lane_ < unit_.end ? ids[(page + lane_) * kPageTokens / layout.block_tokens] : 0;
      const int64_t id = __shfl_sync(0xffffffffu, my_ids, index);
      if (lane_ == 0) {
        const int64_t k =
            id * layout.block_stride() +
            layout.k_offset(layer, unit_.kv_head, page * kPageTokens % layout.block_tokens);
        Barrier& full = ring_.full[at_.stage];
        char* const stage = ring_.stages[at_.stage];
        ring_.empty[at_.stage].wait(at_.parity);
        full.arrive_expecting(kPageBytes);
        copy(stage, contexts_, full, static_cast<int>(k / kHeadDim), 0, 0);
        copy(stage + kPageBytes / 2, contexts_, full,
             static_cast<int>((k + layout.v_offset()) / kHeadDim), 0, 0);
        at_.pass(1);
      }
      __syncwarp();
    }
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
  return step / 2 * kStageValues + step % 2 * kStep;
}

struct Weights {
  uint4 low, high;
};

// A consumer's end.
class Stream {
 public:
  __device__ Stream(Ring& ring, Position at) : ring_(ring), at_(at) {}
  __device__ Position position() const { return at_; }

  __device__ void wait() { ring_.full[at_.stage].wait(at_.parity); }
  // 8 values of rows lane.group and 8 further of a stage of weights, in one of the warp's two
  // steps.
  __device__ Weights weights(const Lane& lane, int step) const {
    const char* from = ring_.stages[at_.stage] + lane.warp * (8 * 128) + lane.group * 128 +
                       ((step * 4 + lane.quad) ^ lane.group) * 16;
    return {*reinterpret_cast<const uint4*>(from),
            *reinterpret_cast<const uint4*>(from + kHalfStageBytes)};
  }
  __device__ char* stage() { return ring_.stages[at_.stage]; }
  __device__ int number() const { return at_.stage; }
  // The warp has done with the stage; every consumer must say so, or one of them for all.
  __device__ void release(const Lane& lane, bool for_all = false) {
    __syncwarp();
    if (lane.lane == 0) {
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(
                       shared_address(&ring_.empty[at_.stage].state)),
                   "r"(for_all ? kWarps : 1)
                   : "memory");
    }
  }
  __device__ void pass(int count) {
#pragma unroll 1
    for (; count > 0; count -= kStages) at_.pass(min(count, kStages));
  }
  __device__ void pass_one() {
    at_.pass(1);
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

// For the consumers alone.
__device__ __forceinline__ void sync_consumers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kConsumers) : "memory");
}

}  // namespace vamp::cuda::fused
