#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/moe_routing.h"
#include "kernels/cuda/route_token.cuh"

namespace vamp::cuda {
namespace {

constexpr int kSlotsPerLane = kRoutingMaxExperts / 32;

__device__ void route_any(const float* logits, int E, int top_k, bool renormalise, int* experts,
                          float* weights) {
  if (E <= 64) return route_token<2>(logits, E, top_k, renormalise, experts, weights);
  if (E <= 128) return route_token<4>(logits, E, top_k, renormalise, experts, weights);
  if (E <= 512) return route_token<16>(logits, E, top_k, renormalise, experts, weights);
  route_token<kSlotsPerLane>(logits, E, top_k, renormalise, experts, weights);
}

// Prefix sums of counts[0..E) over experts, and the work items, by a whole block of 1024 threads.
__device__ void scan_experts(const int* counts, int E, const Routing& out) {
  __shared__ int warp_tokens[32], warp_active[32];
  const int e = threadIdx.x, lane = e % 32, warp = e / 32;
  const int count = e < E ? counts[e] : 0;
  const int items = (count + kRoutingWorkTokens - 1) / kRoutingWorkTokens;
  int tokens = count, active = items;
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const int t = __shfl_up_sync(0xffffffffu, tokens, offset);
    const int a = __shfl_up_sync(0xffffffffu, active, offset);
    if (lane >= offset) {
      tokens += t;
      active += a;
    }
  }
  if (lane == 31) {
    warp_tokens[warp] = tokens;
    warp_active[warp] = active;
  }
  __syncthreads();
  for (int w = 0; w < warp; ++w) {
    tokens += warp_tokens[w];
    active += warp_active[w];
  }
  if (e < E) {
    out.expert_start[e + 1] = tokens;
    if (e == 0) out.expert_start[0] = 0;
    for (int i = 0; i < items; ++i) {
      out.work[active - items + i] = {e, tokens - count + i * kRoutingWorkTokens,
                                      min(kRoutingWorkTokens, count - i * kRoutingWorkTokens)};
    }
    if (e == E - 1) *out.num_work = active;
    if (out.expert_counts) out.expert_counts[e] += count;
  }
  __syncthreads();
}

constexpr int kBlock = 1024;
constexpr int kSmallTokens = 24;    // at most that many are routed and sorted by one block,
constexpr int kSmallExperts = 512;  // of at most that many experts

template <int kPerLane>
__global__ void __launch_bounds__(kBlock)
    route_small_kernel(const float* __restrict__ logits, Routing out, int T, int E, int top_k,
                       bool renormalise) {
  constexpr int kWarps = kBlock / 32, kExperts = kPerLane * 32;
  __shared__ int experts[kBlock];
  __shared__ int counts[kBlock];
  __shared__ uint16_t warp_count[kWarps][kExperts];  // pairs of a warp by expert, then their prefix
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  allow_next();
  for (int i = threadIdx.x; i < kWarps * kExperts; i += kBlock) (&warp_count[0][0])[i] = 0;
  wait_for_previous();
  for (int t = warp; t < T; t += kWarps) {
    route_token<kPerLane>(logits + static_cast<size_t>(t) * E, E, top_k, renormalise,
                          experts + t * top_k, out.weights + t * top_k);
  }
  __syncthreads();
  const int pair = threadIdx.x, mine = pair < T * top_k ? experts[pair] : -1;
  const unsigned same = __match_any_sync(0xffffffffu, mine);
  const int rank = __popc(same & ((1u << lane) - 1));
  if (mine >= 0 && rank == 0) warp_count[warp][mine] = static_cast<uint16_t>(__popc(same));
  __syncthreads();
  int count = 0;
  if (threadIdx.x < kExperts) {
    for (int w = 0; w < kWarps; ++w) {
      const int here = warp_count[w][threadIdx.x];
      warp_count[w][threadIdx.x] = static_cast<uint16_t>(count);
      count += here;
    }
  }
  counts[threadIdx.x] = count;
  __syncthreads();
  scan_experts(counts, E, out);
  if (mine >= 0) {
    out.experts[pair] = mine;
    out.pairs[out.expert_start[mine] + warp_count[warp][mine] + rank] = pair;
  }
}

// Many tokens, three kernels: route; sort the pairs, a block an expert; cut the work. The order
// within an expert is by pair, as for few tokens.

__global__ void __launch_bounds__(256)
    route_kernel(const float* logits, Routing out, int T, int E, int top_k, bool renormalise) {
  allow_next();
  wait_for_previous();
  const int t = blockIdx.x * 8 + threadIdx.x / 32;
  if (t >= T) return;
  route_any(logits + static_cast<size_t>(t) * E, E, top_k, renormalise,
            out.experts + static_cast<size_t>(t) * top_k,
            out.weights + static_cast<size_t>(t) * top_k);
}

// Reads all pairs, each warp a slice of them, 256 at a time: body(bits of the warp's 32 pairs from
// `first` on that are this expert's, number of those that are of lower experts).
template <typename Body>
__device__ void scan_slice(const int* experts, int pairs, int e, const Body& body) {
  constexpr int kLoads = 8, kStep = 32 * kLoads;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = kBlock / 32;
  const int slice = (pairs + warps * kStep - 1) / (warps * kStep) * kStep;
  const int end = min(pairs, (warp + 1) * slice);
  for (int first = warp * slice; first < end; first += kStep) {
    int expert[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const int p = first + u * 32 + lane;
      expert[u] = p < end ? experts[p] : kRoutingMaxExperts;
    }
#pragma unroll
    for (int u = 0; u < kLoads; ++u)
      body(first + u * 32, __ballot_sync(0xffffffffu, expert[u] == e),
           __popc(__ballot_sync(0xffffffffu, expert[u] < e)));
  }
}

__global__ void __launch_bounds__(kBlock) sort_kernel(Routing out, int pairs, int E) {
  __shared__ int mine[kBlock / 32], lower[kBlock / 32];
  const int e = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  allow_next();
  wait_for_previous();
  int count = 0, below = 0;
  scan_slice(out.experts, pairs, e, [&](int, unsigned bits, int less) {
    count += __popc(bits);
    below += less;
  });
  if (lane == 0) {
    mine[warp] = count;
    lower[warp] = below;
  }
  __syncthreads();
  int start = 0, next = 0, all = 0;
  for (int w = 0; w < kBlock / 32; ++w) {
    start += lower[w];
    next += w < warp ? mine[w] : 0;
    all += mine[w];
  }
  next += start;
  if (threadIdx.x == 0) {
    out.expert_start[e] = start;
    if (e == E - 1) out.expert_start[E] = start + all;
  }
  scan_slice(out.experts, pairs, e, [&](int first, unsigned bits, int) {
    if (bits >> lane & 1) out.pairs[next + __popc(bits & ((1u << lane) - 1))] = first + lane;
    next += __popc(bits);
  });
}

__global__ void __launch_bounds__(kBlock) work_kernel(Routing out, int E) {
  __shared__ int counts[kRoutingMaxExperts];
  allow_next();
  wait_for_previous();
  const int e = threadIdx.x;
  counts[e] = e < E ? out.expert_start[e + 1] - out.expert_start[e] : 0;
  __syncthreads();
  scan_experts(counts, E, out);
}

}  // namespace

void route(const float* logits, const Routing& out, int T, int E, int top_k, bool renormalise,
           cudaStream_t stream) {
  VAMP_CHECK(T >= 0 && T <= kRoutingMaxTokens && E >= 1 && E <= kRoutingMaxExperts && top_k >= 1 &&
                 top_k <= kMaxTopK && top_k <= E,
             "route: T={} E={} top_k={}", T, E, top_k);
  const int num_pairs = T * top_k;
  if (num_pairs <= kBlock && T <= kSmallTokens && E <= kSmallExperts) {
    const auto kernel = E <= 64    ? route_small_kernel<2>
                        : E <= 128 ? route_small_kernel<4>
                        : E <= 256 ? route_small_kernel<8>
                                   : route_small_kernel<16>;
    launch_overlapped("route", kernel, 1, kBlock, 0, stream, logits, out, T, E, top_k, renormalise);
  } else {
    if (T > 0)
      launch_overlapped("route", route_kernel, (T + 7) / 8, 256, 0, stream, logits, out, T, E,
                        top_k, renormalise);
    launch_overlapped("route: sort", sort_kernel, E, kBlock, 0, stream, out, num_pairs, E);
    launch_overlapped("route: work", work_kernel, 1, kBlock, 0, stream, out, E);
  }
}

}  // namespace vamp::cuda
