// Choosing a token's experts, by one warp.
#pragma once

#include "kernels/cuda/vec.cuh"

namespace vamp::cuda {

constexpr int kMaxTopK = 16;

// Orders as the floats do.
__device__ __forceinline__ uint32_t sort_key(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float sort_value(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Each lane holds every 32nd logit; a round finds the largest (ties: the lower expert) and takes it
// out. `shared`: expert 0 is every token's, in its last slot, weighted by the sigmoid of its logit;
// top_k slots in all, the others' weights among themselves.
template <int kPerLane>
__device__ void route_token(const float* logits, int E, int top_k, bool renormalise, bool shared,
                            int* experts, float* weights) {
  const int lane = threadIdx.x % 32;
  uint32_t key[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int e = i * 32 + lane;
    key[i] = e < E && !(shared && e == 0) ? sort_key(logits[e]) : 0;
  }
  uint32_t best;  // of this lane's, and which it is
  int at;
  const auto find_best = [&] {
    best = key[0];
    at = 0;
#pragma unroll
    for (int i = 1; i < kPerLane; ++i) {
      if (key[i] > best) {
        best = key[i];
        at = i;
      }
    }
  };
  find_best();
  const float most = sort_value(__reduce_max_sync(0xffffffffu, best));
  float sum = 0;
  if (!renormalise) {
#pragma unroll
    for (int i = 0; i < kPerLane; ++i)
      if (key[i] != 0) sum += __expf(sort_value(key[i]) - most);
    sum = warp_sum(sum);
  }
  float mine = 0;
  int my_expert = 0;
  const int chosen = top_k - (shared ? 1 : 0);
  for (int k = 0; k < chosen; ++k) {
    const uint32_t winner = __reduce_max_sync(0xffffffffu, best);
    const auto expert = static_cast<int>(__reduce_min_sync(
        0xffffffffu, best == winner ? static_cast<uint32_t>(at * 32 + lane) : 0xffffffffu));
    // One lane looks for its next; where that is short, all do, which spares the branch.
    const bool won = expert % 32 == lane;
    if (kPerLane <= 8 || won) {
#pragma unroll
      for (int i = 0; i < kPerLane; ++i)
        if (won && i == at) key[i] = 0;
      find_best();
    }
    if (lane == k) {
      mine = __expf(sort_value(winner) - most);
      my_expert = expert;
    }
  }
  if (renormalise) sum = warp_sum(mine);
  if (lane < chosen) {
    experts[lane] = my_expert;
    weights[lane] = mine / sum;
  } else if (lane < top_k) {
    experts[lane] = 0;
    weights[lane] = 1.0f / (1.0f + __expf(-logits[0]));
  }
}

}  // namespace vamp::cuda
