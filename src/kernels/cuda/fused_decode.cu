#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/fused_attention.cuh"
#include "kernels/cuda/fused_decode.h"
#include "kernels/cuda/fused_exchange.cuh"
#include "kernels/cuda/fused_stream.cuh"
#include "kernels/cuda/pack_bf16.cuh"

namespace vamp::cuda {
namespace fused {
namespace {

constexpr int kStages = 13;
constexpr int kMaxExperts = 128;
constexpr int kRowsOfBlock = 16;  // of the residual, at most

// Words of FusedDecode::sync_, a line of the cache apart: arrivals of blocks at the end of a
// launch, over all launches; how many had come when this one began; layers of all launches in front
// of it; blocks that have done with everything.
enum SyncWord { kArrivals = 0, kArrivalsBefore = 32, kEpoch = 64, kDone = 96, kSyncWords = 128 };

struct Shared {
  Ring<kStages> ring;
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
  Items items;
  uint32_t used[kMaxExperts / 32];
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
__device__ void copy_words(T& to, const T& from) {
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
  __device__ Phase(Shared& shared, int layer, Position<kStages> at)
      : shared_(shared),
        a_(shared.args),
        layer_(shared.layers[layer & 1]),
        index_(layer),
        epoch_(shared.epoch + static_cast<uint32_t>(layer)),
        stream_(shared.ring, at) {}
  __device__ Position<kStages> position() const { return stream_.position(); }

  // The products with the normed residual: of the input projection, or of the router and then of
  // the experts that it chose.
  __device__ void normed(bool experts) {
    if (!experts && index_ + 1 < a_.count)
      copy_words(shared_.layers[(index_ + 1) & 1], a_.layers[index_ + 1]);
    Tokens x;
    load_normed(experts, x);
    Product now = experts ? kRouter : kInput;
    if (experts) clear_items();
#pragma unroll 1
    while (true) {
      product(now, x);
      if (now != kRouter) break;
      choose_experts();
      now = kGateUp;
    }
  }
  __device__ void attention() {
    fence();
    attend(a_, layer_, epoch_, shared_.unit, stream_, shared_.ring, shared_.attention);
    join_pieces(a_, epoch_);
  }
  __device__ void output() {
    out_product();
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
                                      : shared_.items.count * I;
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
      const int slot = shared_.items.slot[item][token];
      if (slot >= 0)
        publish(a_.activation, epoch_, ((token * a_.shape.moe.top_k + slot) * I + at) / 2, word);
    }
  }

  // residual += mixed outᵀ
  __device__ void out_product() {
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

  __device__ void clear_items() {
    const Lane me;
    if (me.thread < kMaxExperts / 32) shared_.used[me.thread] = 0;
#pragma unroll 1
    for (int i = me.thread; i < kMaxPairs * kMaxTokens / 4; i += kConsumers)
      reinterpret_cast<uint32_t*>(shared_.items.slot)[i] = 0xffffffffu;
  }

  // Each block finds out for itself which experts the tokens chose (as route() does).
  __device__ void choose_experts() {
    const int E = a_.shape.moe.experts, k = a_.shape.moe.top_k, pairs = a_.tokens * k;
    const Lane me;
    Items& items = shared_.items;
    sync_consumers();  // `logits` lie where `partial` does
    // Two warps bring a token's logits; a thread has one or two experts, and counts who is in
    // front.
    constexpr int kThreadsOfToken = kConsumers / kMaxTokens,
                  kOfThread = kMaxExperts / kThreadsOfToken;
    const int t = me.thread / kThreadsOfToken, first = me.thread % kThreadsOfToken;
    const bool active = t < a_.tokens;
    float mine[kOfThread];
    if (active) {
      const float* from = a_.logits.of(epoch_) + t * a_.router_rows;
      uint32_t v[kOfThread];
      bool waits;
      do {
        waits = false;
#pragma unroll
        for (int i = 0; i < kOfThread; ++i) {
          const int e = i * kThreadsOfToken + first;
          v[i] = e < E ? peek4(from + e) : 0xff800000u;  // -infinity
          waits |= v[i] == kUnwritten;
        }
      } while (__any_sync(0xffffffffu, waits));
#pragma unroll
      for (int i = 0; i < kOfThread; ++i) {
        const int e = i * kThreadsOfToken + first;
        mine[i] = __uint_as_float(v[i]);
        if (layer_.logits && e < E) mine[i] = layer_.logits[static_cast<int64_t>(t) * E + e];
        if (!(mine[i] > -INFINITY)) mine[i] = -INFINITY;  // so that all are in an order
        shared_.logits[t][e] = mine[i];
      }
    }
    sync_consumers();
    if (active) {
      int in_front[kOfThread] = {};
#pragma unroll 8
      for (int e = 0; e < kMaxExperts; e += 4) {
        const float4 four = *reinterpret_cast<const float4*>(&shared_.logits[t][e]);
        const float other[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int i = 0; i < kOfThread; ++i) {
#pragma unroll
          for (int o = 0; o < 4; ++o)  // of equal ones the lower expert's
            in_front[i] +=
                other[o] > mine[i] || (other[o] == mine[i] && e + o < i * kThreadsOfToken + first);
        }
      }
#pragma unroll
      for (int i = 0; i < kOfThread; ++i) {
        const int e = i * kThreadsOfToken + first;
        if (in_front[i] >= k || e >= E) continue;
        items.chosen[t * k + in_front[i]] = e;
        atomicOr(&shared_.used[e / 32], 1u << e % 32);
        if (blockIdx.x == 0 && layer_.expert_counts) atomicAdd(layer_.expert_counts + e, 1u);
      }
    }
    sync_consumers();
    const int pair = me.thread;
    if (pair < pairs) {
      const int expert = items.chosen[pair];
      int item = 0, count = 0;
#pragma unroll
      for (int i = 0; i < kMaxExperts / 32; ++i) {
        const uint32_t used = shared_.used[i];
        const uint32_t below = i < expert / 32   ? ~0u
                               : i > expert / 32 ? 0
                                                 : (1u << expert % 32) - 1;
        item += __popc(used & below);
        count += __popc(used);
      }
      const float* logits = shared_.logits[pair / k];
      const float most = logits[items.chosen[pair / k * k]];
      float sum = 0;
      if (a_.shape.renormalise) {
        for (int i = 0; i < k; ++i) sum += __expf(logits[items.chosen[pair / k * k + i]] - most);
      } else {
        for (int e = 0; e < E; ++e) sum += __expf(logits[e] - most);
      }
      items.weights[pair] = __expf(logits[expert] - most) / sum;
      items.expert[item] = static_cast<int16_t>(expert);
      items.slot[item][pair / k] = static_cast<int8_t>(pair % k);
      if (pair == 0) items.count = count;
    }
    sync_consumers();
    if (me.thread == 0) shared_.ring.chosen.arrive();
  }

  // residual += the tokens' experts' outputs, weighted, in the order of the experts: a block has
  // its rows of all experts.
  __device__ void down() {
    constexpr int kAhead = 3;  // items whose activations are on their way
    using Inputs = uint4[kMaxExpertSteps];
    const Items& items = shared_.items;
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
  Stream<kStages> stream_;
};

__device__ __forceinline__ Shared& shared_memory() {
  extern __shared__ __align__(1024) char memory[];
  return *reinterpret_cast<Shared*>(memory);
}

template <auto kRun, typename... Rest>
__device__ __noinline__ Position<kStages> run_phase(int layer, Position<kStages> at, Rest... rest) {
  Phase phase(shared_memory(), layer, at);
  (phase.*kRun)(rest...);
  return phase.position();
}

// All blocks have come here.
__device__ void sync_grid(const Args& a) {
  sync_consumers();
  if (threadIdx.x == 0) {
    const uint32_t all = a.sync[kArrivalsBefore] + gridDim.x;
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(a.sync + kArrivals) : "memory");
    uint32_t seen;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                   : "=r"(seen)
                   : "l"(a.sync + kArrivals)
                   : "memory");
    } while (static_cast<int32_t>(seen - all) < 0);
  }
  sync_consumers();
}

__device__ void consume(Shared& shared) {
  const Args& a = shared.args;
  // This block's rows of the residual.
  const Run run = share_of_block(a, kHidden / 8);
  const int token = static_cast<int>(threadIdx.x) / 16, row = static_cast<int>(threadIdx.x) % 16;
  const bool mine = token < a.tokens && run.first + row / 8 < run.end;
  bf16* const residual = a.residual + token * kHidden + run.first * 8 + row;
  if (token < kMaxTokens) shared.residual[token][row] = mine ? *residual : bf16{};
  Position<kStages> at;
#pragma unroll 1
  for (int l = 0; l < a.count; ++l) {
    at = run_phase<&Phase::normed>(l, at, false);
    at = run_phase<&Phase::attention>(l, at);
    at = run_phase<&Phase::output>(l, at);
    at = run_phase<&Phase::normed>(l, at, true);
    at = run_phase<&Phase::combine>(l, at);
  }
  sync_consumers();
  sync_grid(a);
  // Everybody has read everything: what the last layer wrote is unwritten again.
  if (mine) *residual = shared.residual[token][row];
  const uint32_t last = shared.epoch + static_cast<uint32_t>(a.count) - 1;
  char* const exchanged = reinterpret_cast<char*>(a.in.of(last));  // the first array
  const uint4 none = {kUnwritten, kUnwritten, kUnwritten, kUnwritten};
  for (int64_t i = static_cast<int64_t>(blockIdx.x * kConsumers + threadIdx.x) * 16;
       i < a.exchange_bytes; i += static_cast<int64_t>(gridDim.x) * kConsumers * 16)
    put16(exchanged + i, none);
}

__global__ void __launch_bounds__(kThreads)
    fused_decode_kernel(const __grid_constant__ Args args,
                        const __grid_constant__ CUtensorMap contexts) {
  Shared& shared = shared_memory();
  copy_words(shared.args, args);
  copy_words(shared.layers[0], *args.layers);
  if (threadIdx.x == 0) {
    shared.unit = find_unit(args);
    shared.ring.init();
    shared.epoch = args.sync[kEpoch];
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers)
    return Producer<kStages>(shared.args, contexts, shared.ring, shared.items, shared.unit).run();
  consume(shared);
  // The last block tells the next launch where it begins.
  if (threadIdx.x == 0 && atomicAdd(args.sync + kDone, 1u) == gridDim.x - 1) {
    args.sync[kDone] = 0;
    args.sync[kArrivalsBefore] += gridDim.x;
    args.sync[kEpoch] += static_cast<uint32_t>(args.count);
  }
}

int num_blocks() {
  int device = 0, sms = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), "device attributes");
  return sms;
}
int in_row(const FusedShape& s) {
  return (s.heads + 2 * s.kv_heads) * s.head_dim;
}

// Where the arrays of an Args lie in the exchange; `bytes`: of one layer's.
struct Exchange {
  int64_t in, partial, scores, mixed, mid, logits, activation, end, bytes;
  Exchange(const FusedShape& s, int blocks) {
    const int64_t T = kMaxTokens, rows = int64_t{blocks} * kMaxRows;
    int64_t at = 0;
    const auto place = [&](int64_t size) {
      const int64_t from = at;
      at += (size + 127) / 128 * 128;
      return from;
    };
    in = place(T * in_row(s) * 2);
    partial = place(rows * kHeadDim * 4);
    scores = place(rows * 8);
    mixed = place(T * s.heads * s.head_dim * 2);
    mid = place(T * kHidden * 2);
    logits = place(T * ((s.moe.experts + 7) / 8 * 8) * 4);
    activation = place(T * s.moe.top_k * s.moe.intermediate * 2);
    end = place(T * kHidden * 2);
    bytes = at;
  }
};

}  // namespace
}  // namespace fused

bool FusedDecode::takes(const FusedShape& s) {
  using namespace fused;
  const int width = s.heads * s.head_dim;
  return s.hidden == kHidden && s.head_dim == kHeadDim && s.kv_heads > 0 &&
         s.heads % s.kv_heads == 0 && s.heads / s.kv_heads <= kMaxRows &&
         width % kStageValues == 0 && width <= kOutSteps / 2 * kStageValues &&
         s.moe.hidden == s.hidden && s.moe.intermediate % 64 == 0 &&
         s.moe.intermediate <= kMaxExpertSteps / 2 * kStageValues && s.moe.experts <= kMaxExperts &&
         s.moe.top_k <= s.moe.experts && s.moe.top_k * kMaxTokens <= kMaxPairs;
}

FusedDecode::FusedDecode(const FusedShape& shape, const std::vector<FusedLayer>& layers)
    : shape_(shape), blocks_(fused::num_blocks()), layers_(layers), sync_(fused::kSyncWords) {
  VAMP_CHECK(takes(shape), "fused_decode: hidden {}, {} heads of {}, {} experts of {}",
             shape.hidden, shape.heads, shape.head_dim, shape.moe.experts, shape.moe.intermediate);
  const auto map = [](const void* weights, int rows, int cols, int matrices = 1,
                      size_t stride = size_t{1} << 32) {
    return bf16_wide_tensor_map(weights, cols, rows, matrices, stride, 8, fused::kStageValues);
  };
  const int H = shape.hidden, I = shape.moe.intermediate, E = shape.moe.experts;
  std::vector<Maps> maps;
  for (const FusedLayer& l : layers)
    maps.push_back({map(l.in, fused::in_row(shape), H), map(l.out, H, shape.heads * shape.head_dim),
                    map(l.router, E, H), map(l.gate_up, 2 * I, H, E, shape.gate_up_stride),
                    map(l.down, H, I, E, shape.down_stride)});
  maps_ = DeviceBuffer<Maps>(maps);
  const fused::Exchange exchange(shape, blocks_);
  exchange_ = DeviceBuffer<char>(static_cast<size_t>(2 * exchange.bytes));
  check(cudaMemset(exchange_.get(), 0xff, exchange_.size()), "clearing");
  check(cudaMemset(sync_.get(), 0, sync_.size() * sizeof(uint32_t)), "clearing");
}

void FusedDecode::run(__nv_bfloat16* residual, const FusedBatch& batch, cudaStream_t stream) {
  const KvLayout& kv = batch.cache.layout;
  const int tokens = batch.attention.sequences;
  VAMP_CHECK(tokens <= kMaxTokens && tokens * shape_.kv_heads <= blocks_ &&
                 kv.dtype == DType::kBf16 && kv.block_tokens % 16 == 0 &&
                 kv.head_dim == shape_.head_dim && kv.kv_heads == shape_.kv_heads,
             "fused_decode: {} sequences, {} KV heads of {}, blocks of {} tokens", tokens,
             kv.kv_heads, kv.head_dim, kv.block_tokens);
  if (tokens == 0 || layers_.size() == 0) return;
  const fused::Exchange exchange(shape_, blocks_);
  const auto place = [&](auto& to, int64_t offset) {
    to.even = reinterpret_cast<decltype(to.even)>(exchange_.get() + offset);
    to.stride = exchange.bytes;
  };
  fused::Args args{};
  args.shape = shape_;
  args.batch = batch;
  args.layers = layers_.get();
  args.maps = maps_.get();
  args.count = static_cast<int>(layers_.size());
  args.tokens = tokens;
  args.in_row = fused::in_row(shape_);
  args.router_rows = (shape_.moe.experts + 7) / 8 * 8;
  args.out_width = shape_.heads * shape_.head_dim;
  args.blocks_inverse = static_cast<uint32_t>(
      ((uint64_t{1} << 32) + static_cast<uint64_t>(blocks_) - 1) / static_cast<uint64_t>(blocks_));
  args.residual = residual;
  args.sync = sync_.get();
  place(args.in, exchange.in);
  place(args.partial, exchange.partial);
  place(args.scores, exchange.scores);
  place(args.mixed, exchange.mixed);
  place(args.mid, exchange.mid);
  place(args.logits, exchange.logits);
  place(args.activation, exchange.activation);
  place(args.end, exchange.end);
  args.exchange_bytes = exchange.bytes;
  // Keys or values of a page's tokens lie in the arena as rows of one matrix.
  const CUtensorMap contexts =
      bf16_wide_tensor_map(batch.cache.arena, fused::kHeadDim, 1 << 30, 1, size_t{1} << 39,
                           fused::kPageTokens, fused::kHeadDim);
  const auto kernel = fused::fused_decode_kernel;
  constexpr int kBytes = sizeof(fused::Shared);
  static_assert(kBytes <= 227 * 1024);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "fused_decode's shared memory");
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks_));
  config.blockDim = dim3(fused::kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = &together;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, args, contexts), "fused_decode");
}

}  // namespace vamp::cuda
