// The choice of experts of the fused decode step.
#pragma once

#include "kernels/cuda/fused_exchange.cuh"
#include "kernels/cuda/fused_stream.cuh"
#include "kernels/cuda/fused_trace.cuh"
#include "kernels/cuda/route_token.cuh"

namespace vamp::cuda::fused {

template <typename Kind>
struct RoutingShared {
  static constexpr int kWords = Kind::kMaxRouted / 32 + 1;  // and the shared one
  Items items;
  uint32_t used[kWords];                    // a bit each expert that some token chose
  float most[kMaxTokens], sum[kMaxTokens];  // of a token's logits, of their exponentials
};

// A token's experts by one warp, each lane with every 32nd of those that are chosen among. The
// lanes' best ones give a bound that the chosen ones reach, and hardly others: among those that do
// each counts who is in front. Of equal ones the lower expert is. Leaves logits where the weights
// belong.
template <typename Kind>
__device__ inline void choose_for_token(const Args& a, const FusedLayer& layer, uint32_t turn,
                                        int t, RoutingShared<Kind>& shared,
                                        uint2 (&candidates)[32]) {
  constexpr int kOfLane = Kind::kMaxRouted / 32;
  constexpr uint32_t kAll = 0xffffffffu;
  const int E = a.shape.moe.experts, k = a.shape.moe.top_k;
  const int first = Kind::kMixed && a.shape.shared_expert ? 1 : 0, chosen = k - first;
  const Lane me;
  const float* const given =
      layer.logits ? layer.logits + static_cast<int64_t>(t) * E + first : nullptr;
  // On their way while the router's are waited for, where registers have room.
  constexpr bool kAhead = kOfLane <= 4;
  float instead[kOfLane] = {};
  const auto load_given = [&] {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int e = i * 32 + me.lane;
      if (given && first + e < E) instead[i] = __ldg(given + e);
    }
  };
  if (kAhead) load_given();
  const float* const from = a.logits.of(turn) + t * a.router_rows;
  uint32_t key[kOfLane], gate = 0;
  bool waits;
  do {
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) {
      const int e = first + i * 32 + me.lane;
      key[i] = e < E ? peek4(from + e) : 0;
    }
    if (first) gate = peek4(from);
    waits = gate == kUnwritten;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i) waits |= key[i] == kUnwritten;
  } while (__any_sync(kAll, waits));
  if (!kAhead) load_given();
  if (given && first) gate = __float_as_uint(__ldg(given - 1));
  uint32_t best = 0;  // of this lane's
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const float logit = given ? instead[i] : __uint_as_float(key[i]);
    key[i] = first + i * 32 + me.lane < E ? sort_key(logit) : 0;  // 0: none
    best = max(best, key[i]);
  }
  trace(turn, kLogitsArrived);
  const float most = sort_value(__reduce_max_sync(kAll, best));
  if (me.lane == 0) shared.most[t] = most;
  if (!a.shape.renormalise) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kOfLane; ++i)
      if (key[i] != 0) sum += __expf(sort_value(key[i]) - most);
    sum = warp_sum(sum);
    if (me.lane == 0) shared.sum[t] = sum;
  }
  int in_front = 0;
#pragma unroll
  for (int lane = 0; lane < 32; ++lane) {
    const uint32_t other = __shfl_sync(kAll, best, lane);
    in_front += other > best || (other == best && lane < me.lane);
  }
  const uint32_t bound =
      __shfl_sync(kAll, best, __ffs(__ballot_sync(kAll, in_front == chosen - 1)) - 1);
  int count = 0;
#pragma unroll
  for (int i = 0; i < kOfLane; ++i) {
    const bool reaches = key[i] != 0 && key[i] >= bound;
    const uint32_t all = __ballot_sync(kAll, reaches);
    const int at = count + __popc(all & ((1u << me.lane) - 1));
    if (reaches && at < 32) candidates[at] = make_uint2(key[i], i * 32 + me.lane);
    count += __popc(all);
  }
  __syncwarp();
  const auto take = [&](int slot, int expert, float logit) {
    shared.items.chosen[t * k + slot] = expert;
    shared.items.weights[t * k + slot] = logit;
    atomicOr(&shared.used[expert / 32], 1u << expert % 32);
    if (blockIdx.x == 0 && layer.expert_counts) atomicAdd(layer.expert_counts + expert, 1u);
  };
  if (count <= 32) {
    if (me.lane < count) {
      const uint2 mine = candidates[me.lane];
      int slot = 0;
#pragma unroll 4
      for (int i = 0; i < count; ++i) {
        const uint2 other = candidates[i];
        slot += other.x > mine.x || (other.x == mine.x && other.y < mine.y);
      }
      if (slot < chosen) take(slot, first + static_cast<int>(mine.y), sort_value(mine.x));
    }
  } else {  // one after the other
#pragma unroll 1
    for (int slot = 0; slot < chosen; ++slot) {
      uint32_t at = 0, left = 0;
#pragma unroll
      for (int i = kOfLane - 1; i >= 0; --i) {
        if (key[i] < left) continue;
        left = key[i];
        at = static_cast<uint32_t>(i * 32 + me.lane);
      }
      const uint32_t winner = __reduce_max_sync(kAll, left);
      const uint32_t number = __reduce_min_sync(kAll, left == winner ? at : kAll);
#pragma unroll
      for (int i = 0; i < kOfLane; ++i)
        if (number == static_cast<uint32_t>(i * 32 + me.lane)) key[i] = 0;
      if (me.lane == 0) take(slot, first + static_cast<int>(number), sort_value(winner));
    }
  }
  if (first && me.lane == 0) take(chosen, 0, __uint_as_float(gate));
}

// A token's weights from its chosen experts' logits, by one warp.
template <typename Kind>
__device__ inline void weigh(const Args& a, int t, RoutingShared<Kind>& shared) {
  const Lane me;
  const int k = a.shape.moe.top_k;
  const int chosen = k - (Kind::kMixed && a.shape.shared_expert ? 1 : 0);
  float& weight = shared.items.weights[t * k + min(me.lane, k - 1)];
  const float logit = weight;
  const float mine = me.lane < chosen ? __expf(logit - shared.most[t]) : 0.0f;
  const float sum = a.shape.renormalise ? warp_sum(mine) : shared.sum[t];
  __syncwarp();
  if (me.lane < k) weight = me.lane < chosen ? mine / sum : 1.0f / (1.0f + __expf(-logit));
}

// Each block finds out for itself which experts the tokens chose (as route() does), and lists them.
// All consumers; `candidates` is theirs once all have come here.
template <typename Kind>
__device__ inline void choose_experts(const Args& a, const FusedLayer& layer, uint32_t turn,
                                      RoutingShared<Kind>& shared,
                                      uint2 (&candidates)[kMaxTokens][32]) {
  constexpr int kWords = RoutingShared<Kind>::kWords;
  static_assert(2 * kMaxTokens <= kWarps && kMaxPairs <= (kWarps - kMaxTokens) * 32);
  const int k = a.shape.moe.top_k;
  const Lane me;
  Items& items = shared.items;
  if (me.thread < kWords) shared.used[me.thread] = 0;
#pragma unroll 1
  for (int i = me.thread; i < kMaxPairs * kMaxTokens / 4; i += kConsumers)
    reinterpret_cast<uint32_t*>(items.slot)[i] = 0xffffffffu;
  sync_consumers();
  if (me.warp < a.tokens) choose_for_token(a, layer, turn, me.warp, shared, candidates[me.warp]);
  sync_consumers();
  if (me.warp < kMaxTokens) {
    if (me.warp < a.tokens) weigh(a, me.warp, shared);
  } else if (const int pair = me.thread - kMaxTokens * 32; pair < a.tokens * k) {
    const int expert = items.chosen[pair];
    int item = 0, count = 0;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const uint32_t used = shared.used[i];
      const uint32_t below = i < expert / 32 ? ~0u : i > expert / 32 ? 0 : (1u << expert % 32) - 1;
      item += __popc(used & below);
      count += __popc(used);
    }
    items.expert[item] = static_cast<int16_t>(expert);
    items.slot[item][pair / k] = static_cast<int8_t>(pair % k);
    if (pair == 0) items.count = count;
  }
  sync_consumers();
}

}  // namespace vamp::cuda::fused
