// How a block of the fused decode step gets what it reads: a ring of stages in shared memory, which
// one warp, the producer, has filled (fused_producer.cuh). Eight others, the consumers, take the
// stages in the same order; one more, the finisher, ends their sums (fused_finish.cuh).
//
// A stage holds two times 8 rows of weights and up to 1024 values of each, of which every consumer
// multiplies an eighth (down's rows are short, so that several experts' follow each other there),
// or four pages of a context, each of which one of them attends to, or a piece of a Gated
// DeltaNet's state (fused_delta.cuh). It is as large as it is because the producer takes hundreds
// of cycles to ask for anything.
#pragma once

#include "kernels/cuda/fused_share.cuh"
#include "kernels/cuda/pack_bf16.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace vamp::cuda::fused {

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
  // Of the warp's 32 values of one of down's units.
  __device__ __forceinline__ void unit_weights(const Lane& lane, int unit, uint4& low,
                                               uint4& high) const {
    const char* from = ring_.stages[at_.at] + (unit * (kWarps / 2) + lane.warp / 2) * (8 * 128) +
                       lane.group * 128 + ((lane.warp % 2 * 4 + lane.quad) ^ lane.group) * 16;
    low = *reinterpret_cast<const uint4*>(from);
    high = *reinterpret_cast<const uint4*>(from + kHalfStageBytes);
  }
  // Of gate and up, see Ring::tile.
  __device__ int tile() const {
    return ring_.tile[at_.at];
  }
  __device__ char* stage() {
    return ring_.stages[at_.at];
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
