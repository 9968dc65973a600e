// When each block of the fused decode step passes which point of a layer. Only where
// VAMP_FUSED_TRACE is defined (bench/gpu/fused_trace.cu); elsewhere nothing is compiled for it. It
// lengthens a step by some 3%.
#pragma once

#include <cstdint>

#include "kernels/cuda/fused_stream.cuh"

namespace vamp::cuda::fused {

// In the order of a layer. "Told": by the finisher, to the other blocks.
enum TracePoint {
  kInputArrived,  // the residual
  kInputReady,    // this warp's share of it, normed
  kInputDone,     // the input product
  kInputTold,
  kPieceTold,
  kPiecesArrived,
  kMixedTold,
  kMixedArrived,
  kOutputDone,
  kMidTold,  // the residual after attention
  kMidArrived,
  kMidReady,
  kRouterDone,
  kRouterTold,
  kLogitsArrived,
  kChosen,
  kGateUpDone,
  kGateUpTold,
  kDownDone,
  kEndTold,  // the residual after the experts
  kTracePoints
};

#ifdef VAMP_FUSED_TRACE
constexpr int kTraceLayers = 64, kTraceBlocks = 256;
__device__ uint32_t trace_times[kTraceLayers][kTracePoints][kTraceBlocks];  // ns

// By the first thread of the consumers or of the finisher.
__device__ __forceinline__ void trace(uint32_t layer, TracePoint point) {
  if (threadIdx.x != 0 && threadIdx.x != kFinisher * 32) return;
  uint32_t now;
  asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(now));
  if (blockIdx.x < kTraceBlocks) trace_times[layer % kTraceLayers][point][blockIdx.x] = now;
}
#else
__device__ __forceinline__ void trace(uint32_t, TracePoint) {}
#endif

}  // namespace vamp::cuda::fused
