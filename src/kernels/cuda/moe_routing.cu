// One cluster of blocks sorts all pairs: each block counts those of its run of tokens by expert,
// learns from the others' counts where its own begin, and puts them there. Few tokens are routed by
// the same launch.
#include <cooperative_groups.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/moe_routing.h"
#include "kernels/cuda/route_token.cuh"

namespace vamp::cuda {
namespace {

namespace cg = cooperative_groups;

constexpr int kBlock = 1024, kWarps = kBlock / 32;
constexpr int kMaxBlocks = 8;         // of the cluster
constexpr int kAloneTokens = 24;      // at most so many are one block's; of many experts fewer
constexpr int kTogetherTokens = 512;  // at most so many are routed by the sorting launch
static_assert(kRoutingMaxExperts <= kBlock);
static_assert(kTogetherTokens / kMaxBlocks * kMaxTopK <= kBlock &&
              kAloneTokens * kMaxTopK <= kBlock);
static_assert(kRoutingMaxTokens * kMaxTopK / kMaxBlocks <= 65536);  // counts have 16 bits

template <int kPerLane>
__global__ void __launch_bounds__(256) route_kernel(const float* logits, Routing out, int T, int E,
                                                    int top_k, bool renormalise, bool shared) {
  allow_next();
  wait_for_previous();
  const int t = blockIdx.x * 8 + threadIdx.x / 32;
  if (t >= T) return;
  const size_t pair = static_cast<size_t>(t) * top_k;
  route_token<kPerLane>(logits + static_cast<size_t>(t) * E, E, top_k, renormalise, shared,
                        out.experts + pair, out.weights + pair);
}

struct Scan {
  int first_pair, first_item;  // of this thread's expert
};
// Prefix sums of the experts' counts and work items, a thread an expert.
__device__ Scan scan_experts(int count) {
  __shared__ int warp_pairs[kWarps], warp_items[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int items = (count + kRoutingWorkTokens - 1) / kRoutingWorkTokens;
  int pairs_sum = count, items_sum = items;
#pragma unroll
  for (int offset = 1; offset < 32; offset <<= 1) {
    const int p = __shfl_up_sync(0xffffffffu, pairs_sum, offset);
    const int i = __shfl_up_sync(0xffffffffu, items_sum, offset);
    if (lane >= offset) {
      pairs_sum += p;
      items_sum += i;
    }
  }
  if (lane == 31) {
    warp_pairs[warp] = pairs_sum;
    warp_items[warp] = items_sum;
  }
  __syncthreads();
  for (int w = 0; w < warp; ++w) {
    pairs_sum += warp_pairs[w];
    items_sum += warp_items[w];
  }
  return {pairs_sum - count, items_sum - items};
}

__device__ void write_lists(const Routing& out, int E, int count, const Scan& scan) {
  const int e = threadIdx.x;
  if (e >= E) return;
  out.expert_start[e] = scan.first_pair;
  if (out.work_start) out.work_start[e] = scan.first_item;
  const int items = (count + kRoutingWorkTokens - 1) / kRoutingWorkTokens;
  for (int i = 0; i < items; ++i)
    out.work[scan.first_item + i] = {e, scan.first_pair + i * kRoutingWorkTokens,
                                     min(kRoutingWorkTokens, count - i * kRoutingWorkTokens)};
  if (e == E - 1) {
    out.expert_start[E] = scan.first_pair + count;
    *out.num_work = scan.first_item + items;
    if (out.work_start) out.work_start[E] = scan.first_item + items;
  }
  if (out.expert_counts) out.expert_counts[e] += count;
}

// The lanes whose expert is the same; -1 is one too. (match.any takes five times as long.)
template <int kExperts>
__device__ unsigned lanes_alike(int expert) {
  unsigned same = __ballot_sync(0xffffffffu, expert >= 0);
  if (expert < 0) same = ~same;
#pragma unroll
  for (int bit = 1; bit < kExperts; bit <<= 1) {
    const unsigned set = __ballot_sync(0xffffffffu, (expert & bit) != 0);
    same &= expert & bit ? set : ~set;
  }
  return same;
}

// Dynamic shared memory: warp_count [kWarps][32 kPerLane], a block's pairs by warp and expert, then
// how many the warps in front have.
template <int kPerLane, bool kRoute>
__global__ void __launch_bounds__(kBlock)
    sort_kernel(const float* __restrict__ logits, Routing out, int T, int E, int top_k,
                bool renormalise, bool shared) {
  constexpr int kExperts = kPerLane * 32;
  extern __shared__ uint16_t warp_count[];
  __shared__ int block_count[kRoutingMaxExperts], first[kRoutingMaxExperts];
  __shared__ int chosen[kRoute ? kBlock : 1];
  const cg::cluster_group cluster = cg::this_cluster();
  const int blocks = static_cast<int>(gridDim.x), rank = static_cast<int>(blockIdx.x);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int tokens = (T + blocks - 1) / blocks;  // of a block
  const int token = min(T, rank * tokens), end_token = min(T, token + tokens);
  const int first_pair = token * top_k, pairs = end_token * top_k - first_pair;
  const auto sync_all = [&] {
    if (blocks == 1) return __syncthreads();
    cluster.sync();
  };
  allow_next();
  for (int i = threadIdx.x; i < kWarps * kExperts / 2; i += kBlock)
    reinterpret_cast<uint32_t*>(warp_count)[i] = 0;
  wait_for_previous();
  if constexpr (kRoute) {
    for (int t = token + warp; t < end_token; t += kWarps) {
      route_token<kPerLane>(logits + static_cast<size_t>(t) * E, E, top_k, renormalise, shared,
                            chosen + (t - token) * top_k, out.weights + t * top_k);
    }
  }
  __syncthreads();
  uint16_t* const mine = warp_count + warp * kExperts;
  const int* const experts = kRoute ? chosen : out.experts + first_pair;
  const int run = (pairs + kBlock - 1) / kBlock * 32;  // pairs of a warp; 32 if kRoute
  const auto leads = [&](unsigned same) { return (same & ((1u << lane) - 1)) == 0; };
  // A warp's run of pairs, 32 at a time: body(pair, its expert or -1, lanes with the same expert).
  const auto each_pair = [&](auto&& body) {
    constexpr int kLoads = kRoute ? 1 : 8;  // on their way together
    const int end = min(pairs, (warp + 1) * run);
    for (int p = warp * run + lane; p - lane < end; p += 32 * kLoads) {
      int expert[kLoads];
#pragma unroll
      for (int u = 0; u < kLoads; ++u) expert[u] = p + 32 * u < end ? experts[p + 32 * u] : -1;
#pragma unroll
      for (int u = 0; u < kLoads; ++u) {
        body(first_pair + p + 32 * u, expert[u], lanes_alike<kExperts>(expert[u]));
        __syncwarp();
      }
    }
  };
  each_pair([&](int, int expert, unsigned same) {
    if (expert >= 0 && leads(same)) mine[expert] += static_cast<uint16_t>(__popc(same));
  });
  __syncthreads();
  const int e = threadIdx.x;
  if (e < E) {
    int count = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const int here = warp_count[w * kExperts + e];
      warp_count[w * kExperts + e] = static_cast<uint16_t>(count);
      count += here;
    }
    block_count[e] = count;
  }
  sync_all();
  int before = 0, count = 0;
  if (e < E) {
    for (int b = 0; b < blocks; ++b) {
      const int there = *cluster.map_shared_rank(&block_count[e], b);
      if (b < rank) before += there;
      count += there;
    }
  }
  const Scan scan = scan_experts(count);
  if (e < E) first[e] = scan.first_pair + before;
  if (rank == 0) write_lists(out, E, count, scan);
  sync_all();  // until here others may read block_count; and everybody has `first`
  each_pair([&](int pair, int expert, unsigned same) {
    if (expert < 0) return;
    if constexpr (kRoute) out.experts[pair] = expert;
    const int before_me = mine[expert];
    out.pairs[first[expert] + before_me + __popc(same & ((1u << lane) - 1))] = pair;
    __syncwarp(same);
    if (leads(same)) mine[expert] = static_cast<uint16_t>(before_me + __popc(same));
  });
}

template <int kPerLane>
void route_with(const float* logits, const Routing& out, int T, int E, int top_k, bool renormalise,
                bool shared, cudaStream_t stream) {
  const bool together = T <= kTogetherTokens;
  if (!together)
    launch_overlapped("route", route_kernel<kPerLane>, (T + 7) / 8, 256, 0, stream, logits, out, T,
                      E, top_k, renormalise, shared);
  const auto kernel = together ? sort_kernel<kPerLane, true> : sort_kernel<kPerLane, false>;
  const size_t bytes = sizeof(uint16_t) * kWarps * size_t{kPerLane} * 32;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(bytes)),
        "route's shared memory");
  const int blocks = T <= (kPerLane <= 4 ? kAloneTokens : kAloneTokens / 6) ? 1 : kMaxBlocks;
  launch_overlapped_clusters("route: sort", kernel, blocks, kBlock, bytes, stream, blocks, logits,
                             out, T, E, top_k, renormalise, shared);
}

}  // namespace

void route(const float* logits, const Routing& out, int T, int E, int top_k, bool renormalise,
           cudaStream_t stream, bool shared) {
  VAMP_CHECK(T >= 0 && T <= kRoutingMaxTokens && E >= 1 && E <= kRoutingMaxExperts && top_k >= 1 &&
                 top_k <= kMaxTopK && top_k <= E,
             "route: T={} E={} top_k={}", T, E, top_k);
  const auto with = E <= 64    ? route_with<2>
                    : E <= 128 ? route_with<4>
                    : E <= 256 ? route_with<8>
                    : E <= 544 ? route_with<17>  // 512 and a shared one
                               : route_with<kRoutingMaxExperts / 32>;
  with(logits, out, T, E, top_k, renormalise, shared, stream);
}

}  // namespace vamp::cuda
