// A row of logits spread over the shared memory of a cluster of blocks: passes over it, sums in a
// fixed order, and the search for the key that a given number or mass of tokens lies above.
#pragma once

#include <cooperative_groups.h>

#include "kernels/cuda/sample_row.h"

namespace vamp::cuda::sampling {

namespace cg = cooperative_groups;

constexpr int kBlocks = 8;  // of a cluster
constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kSplits = 7;         // thresholds tried in one pass: three bits of the key
constexpr int kCandidates = 1024;  // that many best tokens are sorted by one block
constexpr size_t kMaxRowBytes = 200 * 1024;

// Floats as integers in the same order.
__device__ uint32_t key_of(float x) {
  const uint32_t bits = __float_as_uint(x);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

struct Shared {
  double from[2][kBlocks][kSplits];  // partial sums of every block, twice: reductions alternate
  double warp[kWarps][kSplits];
  int counts_from[2][kBlocks][kSplits];
  int warp_counts[kWarps][kSplits];
  // The best tokens, in the first block: gathered in any order, then sorted.
  int top_count;
  int32_t top_token[kCandidates];
  float top_value[kCandidates];
  int picked;
};

// One block's share of a row: tokens [first, first + count), thread t those of [t * each, (t + 1) *
// each) within them; `each` is odd, so that threads walk different banks.
class Row {
 public:
  __device__ Row(Shared& shared, float* values, int first, int count, int each)
      : shared_(shared), values_(values), first_(first), count_(count), each_(each) {}

  __device__ float& value(int i) { return values_[i]; }
  __device__ int first() const { return first_; }
  __device__ int count() const { return count_; }

  // body(value, index in the share), for the thread's own tokens in order.
  template <typename Body>
  __device__ void each(const Body& body) {
    const int begin = static_cast<int>(threadIdx.x) * each_;
    for (int i = begin; i < min(begin + each_, count_); ++i) body(values_[i], i);
  }

  // Joins kCount numbers of every thread of the cluster by `join`, in a fixed order. Blocks' joined
  // values before this block's are returned in `before` (for sums).
  template <int kCount, typename Join>
  __device__ void reduce(double (&value)[kCount], const Join& join, double identity,
                         double* before = nullptr) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      for (int offset = 16; offset > 0; offset >>= 1)
        value[i] = join(value[i], __shfl_xor_sync(0xffffffffu, value[i], offset));
      if (lane == 0) shared_.warp[warp][i] = value[i];
    }
    __syncthreads();
    cg::cluster_group cluster = cg::this_cluster();
    const int me = static_cast<int>(cluster.block_rank());
    if (threadIdx.x < kCount * kBlocks) {
      const int i = threadIdx.x % kCount, to = threadIdx.x / kCount;
      double sum = identity;
      for (int w = 0; w < kWarps; ++w) sum = join(sum, shared_.warp[w][i]);
      cluster.map_shared_rank(&shared_, to)->from[turn_][me][i] = sum;
    }
    cluster.sync();
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      double sum = identity;
      for (int b = 0; b < kBlocks; ++b) {
        if (before && i == 0 && b == me) *before = sum;
        sum = join(sum, shared_.from[turn_][b][i]);
      }
      value[i] = sum;
    }
    turn_ ^= 1;
  }
  template <int kCount>
  __device__ void sum(double (&value)[kCount], double* before = nullptr) {
    reduce(
        value, [](double a, double b) { return a + b; }, 0.0, before);
  }
  __device__ double sum(double value) {
    double v[1] = {value};
    sum(v);
    return v[0];
  }
  __device__ double max(double value) {
    double v[1] = {value};
    reduce(
        v, [](double a, double b) { return a > b ? a : b; }, -INFINITY);
    return v[0];
  }

  // The smallest key v such that the measure of tokens with keys above v is less than `target`; the
  // measure is their number, or their sum of values (`mass`). `above` gets it.
  __device__ uint32_t search(bool mass, double target, double* above) {
    uint32_t low = 0;  // v is in [low, low + 8 * 2^bits)
    const auto weight = [mass](float x) { return mass ? static_cast<double>(x) : 1.0; };
    for (int bits = 30; bits >= 0; bits -= 3) {
      // Tried are the last keys of each eighth but the last. The measure falls as v rises.
      double measure[kSplits] = {};
      each([&](float x, int) {
        const uint32_t key = key_of(x);
#pragma unroll
        for (int s = 0; s < kSplits; ++s) {
          const uint64_t v = low + (static_cast<uint64_t>(s + 1) << bits) - 1;
          if (key > v) measure[s] += weight(x);
        }
      });
      sum(measure);
      int eighth = 0;
#pragma unroll
      for (int s = 0; s < kSplits; ++s) eighth += measure[s] >= target;
      low += static_cast<uint32_t>(eighth) << bits;
    }
    double mine = 0;
    each([&](float x, int) {
      if (key_of(x) > low) mine += weight(x);
    });
    *above = sum(mine);
    return low;
  }

  // The n-th greatest key (0 if there are fewer tokens): fewer than n keys are above it. `above`:
  // how many.
  __device__ uint32_t nth_key(int n, int* above) {
    uint32_t low = 0;
    for (int bits = 30; bits >= 0; bits -= 3) {
      int count[kSplits] = {};
      each([&](float x, int) {
        const uint32_t key = key_of(x);
#pragma unroll
        for (int s = 0; s < kSplits; ++s)
          count[s] += key > low + (static_cast<uint64_t>(s + 1) << bits) - 1;
      });
      sum(count);
      int eighth = 0;
#pragma unroll
      for (int s = 0; s < kSplits; ++s) eighth += count[s] >= n;
      low += static_cast<uint32_t>(eighth) << bits;
    }
    int count[kSplits] = {};
    each([&](float x, int) { count[0] += key_of(x) > low; });
    sum(count);
    *above = count[0];
    return low;
  }

  __device__ void sum(int (&value)[kSplits]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int i = 0; i < kSplits; ++i) {
      const int all = __reduce_add_sync(0xffffffffu, value[i]);
      if (lane == 0) shared_.warp_counts[warp][i] = all;
    }
    __syncthreads();
    cg::cluster_group cluster = cg::this_cluster();
    if (threadIdx.x < kSplits * kBlocks) {
      const int i = threadIdx.x % kSplits, to = threadIdx.x / kSplits;
      int all = 0;
      for (int w = 0; w < kWarps; ++w) all += shared_.warp_counts[w][i];
      cluster.map_shared_rank(&shared_, to)->counts_from[turn_][cluster.block_rank()][i] = all;
    }
    cluster.sync();
#pragma unroll
    for (int i = 0; i < kSplits; ++i) {
      value[i] = 0;
      for (int b = 0; b < kBlocks; ++b) value[i] += shared_.counts_from[turn_][b][i];
    }
    turn_ ^= 1;
  }

  // For each token with key v, in order of ids: body(value, index, its number among them).
  template <typename Body>
  __device__ void each_tie(uint32_t v, const Body& body) {
    double mine[1] = {0};
    each([&](float x, int) { mine[0] += key_of(x) == v; });
    double before = exclusive(mine[0]);
    each([&](float& x, int i) {
      if (key_of(x) == v) body(x, i, before++);
    });
  }

  // The sum over all threads of the cluster before this one. total: over all.
  __device__ double exclusive(double mine, double* total = nullptr) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    double up = mine;
    for (int offset = 1; offset < 32; offset <<= 1) {
      const double other = __shfl_up_sync(0xffffffffu, up, offset);
      if (lane >= offset) up += other;
    }
    double v[1] = {mine}, before_block = 0;
    sum(v, &before_block);
    if (total) *total = v[0];
    __syncthreads();
    if (lane == 31) shared_.warp[warp][1] = up;
    __syncthreads();
    double before = before_block + (up - mine);
    for (int w = 0; w < warp; ++w) before += shared_.warp[w][1];
    __syncthreads();
    return before;
  }

 private:
  Shared& shared_;
  float* values_;
  const int first_, count_, each_;
  int turn_ = 0;
};

}  // namespace vamp::cuda::sampling
