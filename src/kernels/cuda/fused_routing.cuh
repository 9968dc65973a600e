// The choice of experts of the fused decode step.
#pragma once

#include "kernels/cuda/fused_exchange.cuh"
#include "kernels/cuda/fused_stream.cuh"

namespace vamp::cuda::fused {

constexpr int kMaxExperts = 128;

struct RoutingShared {
  Items items;
  uint32_t used[kMaxExperts / 32];  // a bit each expert that some token chose
};

// Before choose_experts, any time after the last layer's items have been used.
__device__ inline void clear_items(RoutingShared& shared) {
  const Lane me;
  if (me.thread < kMaxExperts / 32) shared.used[me.thread] = 0;
#pragma unroll 1
  for (int i = me.thread; i < kMaxPairs * kMaxTokens / 4; i += kConsumers)
    reinterpret_cast<uint32_t*>(shared.items.slot)[i] = 0xffffffffu;
}

// Each block finds out for itself which experts the tokens chose (as route() does), and lists them.
// All consumers; `logits` [kMaxTokens] is theirs once all have come here.
__device__ inline void choose_experts(const Args& a, const FusedLayer& layer, uint32_t epoch,
                                      RoutingShared& shared,
                                      float (&logits_of)[kMaxTokens][kMaxExperts]) {
  const int E = a.shape.moe.experts, k = a.shape.moe.top_k, pairs = a.tokens * k;
  const Lane me;
  Items& items = shared.items;
  sync_consumers();
  // Two warps bring a token's logits; a thread has one or two experts, and counts who is in
  // front.
  constexpr int kThreadsOfToken = kConsumers / kMaxTokens,
                kOfThread = kMaxExperts / kThreadsOfToken;
  const int t = me.thread / kThreadsOfToken, first = me.thread % kThreadsOfToken;
  const bool active = t < a.tokens;
  float mine[kOfThread];
  if (active) {
    const float* from = a.logits.of(epoch) + t * a.router_rows;
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
      if (layer.logits && e < E) mine[i] = layer.logits[static_cast<int64_t>(t) * E + e];
      if (!(mine[i] > -INFINITY)) mine[i] = -INFINITY;  // so that all are in an order
      logits_of[t][e] = mine[i];
    }
  }
  sync_consumers();
  if (active) {
    int in_front[kOfThread] = {};
#pragma unroll 8
    for (int e = 0; e < kMaxExperts; e += 4) {
      const float4 four = *reinterpret_cast<const float4*>(&logits_of[t][e]);
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
      atomicOr(&shared.used[e / 32], 1u << e % 32);
      if (blockIdx.x == 0 && layer.expert_counts) atomicAdd(layer.expert_counts + e, 1u);
    }
  }
  sync_consumers();
  const int pair = me.thread;
  if (pair < pairs) {
    const int expert = items.chosen[pair];
    int item = 0, count = 0;
#pragma unroll
    for (int i = 0; i < kMaxExperts / 32; ++i) {
      const uint32_t used = shared.used[i];
      const uint32_t below = i < expert / 32 ? ~0u : i > expert / 32 ? 0 : (1u << expert % 32) - 1;
      item += __popc(used & below);
      count += __popc(used);
    }
    const float* logits = logits_of[pair / k];
    const float most = logits[items.chosen[pair / k * k]];
    float sum = 0;
    if (a.shape.renormalise) {
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
}

}  // namespace vamp::cuda::fused
