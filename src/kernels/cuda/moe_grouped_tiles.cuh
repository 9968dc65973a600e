// Which tiles of the experts' products there are, and the warpgroup that brings them into shared
// memory. See moe_grouped.cu.
#pragma once

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/moe_routing.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"

namespace vamp::cuda::grouped {

using bf16 = __nv_bfloat16;

constexpr int kTokens = 128;            // most tokens of a tile
constexpr int kHalfRows = 128;          // a tile's weights: two boxes of that many rows
constexpr int kDepth = kTensorMapCols;  // of K in a stage
constexpr int kStages = 4;
constexpr int kLag = 2;         // gathered stages in flight before one is awaited
constexpr int kBoxTokens = 16;  // tokens come in boxes of that many
constexpr int kWarpgroup = 128;
constexpr int kThreads = 3 * kWarpgroup;
constexpr int kConsumerWarps = 8;
constexpr int kRowStep = kWarpgroup / 8;  // eight threads write a row's 64 values

struct Shared {
  bf16 weights[kStages][2][kHalfRows * kDepth];
  bf16 tokens[kStages][kTokens * kDepth];
  bf16 out[2][kTokens * 64];  // of a warpgroup: rows of 64
  Barrier full[kStages], empty[kStages];
  uint16_t first_group[kRoutingMaxExperts + 2];  // groups of tokens before an expert's
};
static_assert(sizeof(Shared) <= 227 * 1024);

// gate and up rows of the same indices, or 256 rows of down.
template <bool kGateUp>
constexpr int kRowsPerTile = kGateUp ? kHalfRows : 2 * kHalfRows;

struct Problem {
  const bf16* x;  // gate_up: [tokens, K], gathered
  bf16* out;
  const int32_t* expert_start;
  const int32_t* pairs;
  int experts, top_k;
  int rows;  // of the output: I or H
  int K;
  ExpertPart part;
};

// One block's work: some rows of the output for some tokens.
struct Tile {
  int expert, first, count;  // tokens: places first ... first + count of the sorted pairs
  int row;                   // first row of the output
};

// An expert's tokens are cut into groups of equal size.
__device__ inline int groups_of(int tokens) {
  return (tokens + kTokens - 1) / kTokens;
}

// Fills first_group, by one warp; its last entry is the number of all groups.
__device__ inline void count_groups(const Problem& problem, uint16_t* first_group) {
  const int lane = threadIdx.x % 32;
  int before = 0, first = 0, end = problem.experts;
  if (problem.part.first) (problem.part.from ? first : end) = *problem.part.first;
  for (int base = 0; base < problem.experts; base += 32) {
    const int e = base + lane;
    const int groups = e >= first && e < end
                           ? groups_of(problem.expert_start[e + 1] - problem.expert_start[e])
                           : 0;
    int sum = groups;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
      const int other = __shfl_up_sync(0xffffffffu, sum, offset);
      if (lane >= offset) sum += other;
    }
    if (e < problem.experts) first_group[e] = static_cast<uint16_t>(before + sum - groups);
    before += __shfl_sync(0xffffffffu, sum, 31);
  }
  if (lane == 0) first_group[problem.experts] = static_cast<uint16_t>(before);
}

// Work runs over experts, then their rows, then their groups: blocks at work at one time share
// weights.
template <bool kGateUp>
__device__ inline Tile find_tile(const Problem& problem, const uint16_t* first_group, int row_tiles,
                                 int index) {
  int low = 0, high = problem.experts;  // the last expert with first_group * row_tiles <= index
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (first_group[middle] * row_tiles <= index)
      low = middle;
    else
      high = middle;
  }
  const int groups = first_group[low + 1] - first_group[low];
  const int local = index - first_group[low] * row_tiles;
  const int start = problem.expert_start[low], tokens = problem.expert_start[low + 1] - start;
  const int share = ((tokens + groups - 1) / groups + 7) / 8 * 8;
  const int offset = local % groups * share;
  return {low, start + offset, max(0, min(share, tokens - offset)),
          local / groups * kRowsPerTile<kGateUp>};
}

struct Ring {
  int stage = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

__device__ inline void copy_weights(Shared& shared, const CUtensorMap& map, int stage, int k,
                                    int row, int second_row, int expert) {
  copy_box(shared.weights[stage][0], map, shared.full[stage], k, row, expert);
  copy_box(shared.weights[stage][1], map, shared.full[stage], k, second_row, expert);
}
constexpr uint32_t kWeightBytes = 2 * kHalfRows * kDepth * 2;

// Producer of gate_up: tokens are gathered by their pairs, each thread 16 bytes of every 16th row.
class GatherProducer {
 public:
  __device__ GatherProducer(Shared& shared, const Problem& problem, const CUtensorMap& weights)
      : shared_(shared), problem_(problem), weights_(weights) {}

  __device__ void run(const Tile& tile) {
    constexpr int kRows = kTokens / 16;
    const int thread = threadIdx.x % kWarpgroup, row = thread / 8, chunk = thread % 8;
    const bf16* source[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int t = row + 16 * i;
      source[i] = nullptr;
      if (t < tile.count)
        source[i] =
            problem_.x +
            static_cast<size_t>(problem_.pairs[tile.first + t] / problem_.top_k) * problem_.K;
    }
    const int place = row * 128 + ((chunk ^ (row % 8)) * 16);  // rows 16 apart swizzle alike
    for (int k = 0; k < problem_.K; k += kDepth) {
      shared_.empty[ring_.stage].wait(ring_.parity ^ 1);
      if (thread == 0) {
        shared_.full[ring_.stage].arrive_expecting(kWeightBytes);
        copy_weights(shared_, weights_, ring_.stage, k, tile.row, problem_.rows + tile.row,
                     tile.expert);
      }
      const uint32_t to = shared_address(shared_.tokens[ring_.stage]) + place;
      const int column = k + chunk * 8;
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        if (source[i])
          copy16(to + i * 16 * 128, column < problem_.K ? source[i] + column : source[i],
                 column < problem_.K ? 16 : 0);
      }
      commit_copies();
      if (started_ >= kLag) {
        wait_copies<kLag>();
        finish_stage();
      }
      ++started_;
      ring_.advance();
    }
  }
  __device__ void finish() {
    wait_copies<0>();
    for (int i = min(started_, kLag); i > 0; --i) finish_stage();
  }

 private:
  __device__ void finish_stage() {
    fence_async_shared();
    shared_.full[done_.stage].arrive();
    done_.advance();
  }
  Shared& shared_;
  const Problem& problem_;
  const CUtensorMap& weights_;
  Ring ring_, done_;
  int started_ = 0;
};

// Producer of down, one thread: tokens lie in order already. The first weights are asked for while
// gate_up, which makes the tokens, still runs.
class BoxProducer {
 public:
  __device__ BoxProducer(Shared& shared, const Problem& problem, const CUtensorMap& weights,
                         const CUtensorMap& tokens)
      : shared_(shared), problem_(problem), weights_(weights), tokens_(tokens) {}

  __device__ void run(const Tile& tile) {
    const int boxes = (tile.count + kBoxTokens - 1) / kBoxTokens;
    int k = 0;
    if (!started_) {
      started_ = true;
      const int filled = min(kStages, (problem_.K + kDepth - 1) / kDepth);
      for (int stage = 0; stage < filled; ++stage) begin(tile, boxes, stage, stage * kDepth);
      wait_for_previous();
      for (; k < filled * kDepth; k += kDepth) {
        copy_tokens(tile, boxes, k);
        ring_.advance();
      }
    }
    for (; k < problem_.K; k += kDepth) {
      shared_.empty[ring_.stage].wait(ring_.parity ^ 1);
      begin(tile, boxes, ring_.stage, k);
      copy_tokens(tile, boxes, k);
      ring_.advance();
    }
  }

 private:
  __device__ void begin(const Tile& tile, int boxes, int stage, int k) {
    shared_.full[stage].arrive_expecting(kWeightBytes + boxes * kBoxTokens * kDepth * 2);
    copy_weights(shared_, weights_, stage, k, tile.row, tile.row + kHalfRows, tile.expert);
  }
  __device__ void copy_tokens(const Tile& tile, int boxes, int k) {
    for (int i = 0; i < boxes; ++i) {
      copy_box(shared_.tokens[ring_.stage] + i * kBoxTokens * kDepth, tokens_,
               shared_.full[ring_.stage], k, tile.first + i * kBoxTokens, 0);
    }
  }
  Shared& shared_;
  const Problem& problem_;
  const CUtensorMap &weights_, &tokens_;
  Ring ring_;
  bool started_ = false;
};

}  // namespace vamp::cuda::grouped
