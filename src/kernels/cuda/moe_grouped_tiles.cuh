// Which tiles the experts' products are made of and in which order blocks take them. See
// moe_grouped.cu.
#pragma once

#include <algorithm>

#include "kernels/cuda/moe_grouped.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/wgmma.cuh"

namespace vamp::cuda::grouped {

using bf16 = __nv_bfloat16;

constexpr int kHalfRows = 128;          // a tile's weights: two boxes of that many rows
constexpr int kDepth = kTensorMapCols;  // of K in a stage
constexpr int kQueue = 8;               // tiles that their weights may be ahead of the products
constexpr int kWarpgroup = 128;
constexpr int kThreads = 3 * kWarpgroup;
constexpr int kTokenThreads = kWarpgroup - 32, kTokenWarps = kTokenThreads / 32;
constexpr int kConsumers = 2, kConsumerWarps = kConsumers * kWarpgroup / 32;
constexpr int kRowStep = kWarpgroup / 8;  // eight threads write a row's 64 values

// One block's work: some rows of an output for some tokens of an expert.
struct alignas(16) Tile {
  enum Kind : uint8_t {
    kGateUp,  // 128 rows of gate and the same ones of up
    kDown,    // 256 rows
    kUnused,  // what was read ahead for nothing
    kTaken,   // another block's
    kEnd
  };
  int32_t expert, first;  // tokens: places first ... first + count of the sorted pairs
  int32_t row;            // first row of the output; kUnused: stages
  uint16_t groups;        // that the expert's tokens are cut into
  uint8_t count;
  Kind kind;
};
static_assert(sizeof(Tile) == 16);

// Whether tiles of at most so many tokens take as long as their weights' bytes, not as the
// products.
template <int kTokens>
constexpr bool kStreams = kTokens <= 64;

// `kTokens`: most of a tile. The fewer, the more weights are on their way.
template <int kTokens>
struct Shared {
  static constexpr int kStages = kTokens <= 32 ? 6 : kTokens <= 64 ? 5 : 4;
  bf16 weights[kStages][2][kHalfRows * kDepth];
  bf16 tokens[kStages][kTokens * kDepth];
  union {
    bf16 out[kConsumers][kTokens * 64];            // of a warpgroup: rows of 64
    int32_t expert_start[kRoutingMaxExperts + 1];  // until the first tile
  };
  Tile queue[kQueue];
  Barrier full[kStages], empty[kStages], queued[kQueue], taken[kQueue];
  uint16_t first_group[kRoutingMaxExperts + 2];  // groups of tokens before a position's
  int groups_of_warp[kThreads / 32];             // of its positions
};
static_assert(std::max({sizeof(Shared<32>), sizeof(Shared<64>), sizeof(Shared<128>)}) <=
              227 * 1024);

struct Problem {
  const bf16* x;     // [tokens, hidden], gathered
  bf16* activation;  // [pairs, intermediate], by expert
  bf16* y;           // [pairs, hidden]
  const int32_t* expert_start;
  const int32_t* pairs;
  int32_t* progress;
  int experts, top_k, hidden, intermediate;
  ExpertPart part;
  int early;  // so many experts' first tiles are blocks' own, from before the launch in front ended

  __device__ int gate_up_tiles() const { return (intermediate + kHalfRows - 1) / kHalfRows; }
  __device__ int down_tiles() const { return (hidden + 2 * kHalfRows - 1) / (2 * kHalfRows); }
  __device__ int32_t* ticket() const { return progress; }
  __device__ int draw() const { return atomicAdd(ticket(), 1); }
  __device__ int32_t* claim(int tile) const { return progress + 1 + tile; }
  // Warpgroups that are done with a tile of the expert's activations, then warps that go on.
  __device__ int32_t* done(int expert) const { return progress + 1 + kMoeEarlyTiles + expert; }
  __device__ int steps(const Tile& tile) const {
    if (tile.kind == Tile::kUnused) return tile.row;
    return ((tile.kind == Tile::kGateUp ? hidden : intermediate) + kDepth - 1) / kDepth;
  }
};

// An index of a ring of kCount barriers, and the parity of its turn.
template <int kCount>
struct Turn {
  int at = 0;
  uint32_t parity = 0;
  __device__ void advance() {
    if (++at == kCount) {
      at = 0;
      parity ^= 1;
    }
  }
};

// The tiles in the order in which blocks draw them: gate and up's of all experts, then down's, each
// over experts, their rows, then their groups of tokens: blocks at work at one time share weights.
// Experts from `early` on come first. Made by all threads of a block, used by one.
template <int kTokens>
class WorkList {
  static constexpr int kOfThread = (kRoutingMaxExperts + kThreads - 1) / kThreads;

 public:
  __device__ WorkList(Shared<kTokens>& shared, const Problem& problem)
      : starts_(shared.expert_start), first_group_(shared.first_group), problem_(problem) {
    int first = 0, end = problem.experts;
    if (problem.part.first) (problem.part.from ? first : end) = *problem.part.first;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    // A thread's positions follow each other.
    const int each = (problem.experts + kThreads - 1) / kThreads;
    const int begin = static_cast<int>(threadIdx.x) * each;
    int groups[kOfThread] = {}, own = 0;
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      if (i >= each || begin + i >= problem.experts) break;
      const int e = expert_at(begin + i);
      const int start = problem.expert_start[e], stop = problem.expert_start[e + 1];
      shared.expert_start[e] = start;
      if (e == problem.experts - 1) shared.expert_start[e + 1] = stop;
      groups[i] = e >= first && e < end ? (stop - start + kTokens - 1) / kTokens : 0;
      own += groups[i];
    }
    int sum = own;
#pragma unroll
    for (int offset = 1; offset < 32; offset <<= 1) {
      const int other = __shfl_up_sync(0xffffffffu, sum, offset);
      if (lane >= offset) sum += other;
    }
    if (lane == 31) shared.groups_of_warp[warp] = sum;
    __syncthreads();
    int before = sum - own;
#pragma unroll
    for (int w = 0; w < kThreads / 32; ++w) {
      const int of_warp = shared.groups_of_warp[w];
      if (w < warp) before += of_warp;
      groups_ += of_warp;
    }
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      if (i >= each || begin + i >= problem.experts) break;
      first_group_[begin + i] = static_cast<uint16_t>(before);
      before += groups[i];
    }
    if (threadIdx.x == 0) first_group_[problem.experts] = static_cast<uint16_t>(groups_);
    __syncthreads();
  }

  // The experts' starts in shared memory are overwritten when the first tile is done.
  __device__ void forget_starts() {
    starts_ = problem_.expert_start;
  }

  __device__ Tile tile(int number) const {
    const int gate_up = groups_ * problem_.gate_up_tiles();
    const int all = gate_up + groups_ * problem_.down_tiles();
    if (number < gate_up) return gate_up_tile(number);
    if (number < all) return down_tile(number - gate_up);
    // Every block draws one number too many; the last leaves the count as it was.
    if (number == all + static_cast<int>(gridDim.x) - 1) *problem_.ticket() = 0;
    Tile tile{};
    tile.kind = Tile::kEnd;
    return tile;
  }

  // A block's own tile, or one of kind kTaken.
  __device__ Tile early_tile(int number) const {
    Tile tile{};
    tile.kind = Tile::kTaken;
    const int expert = number / problem_.gate_up_tiles();
    const int position = problem_.experts - problem_.early + expert;
    const int groups = first_group_[position + 1] - first_group_[position];
    if (groups == 0) return tile;
    return gate_up_tile(first_group_[position] * problem_.gate_up_tiles() +
                        number % problem_.gate_up_tiles() * groups);
  }

 private:
  __device__ int expert_at(int position) const {
    const int e = position + problem_.early;
    return e < problem_.experts ? e : e - problem_.experts;
  }
  __device__ Tile gate_up_tile(int number) const {
    Tile tile = find(number, problem_.gate_up_tiles());
    tile.kind = Tile::kGateUp;
    if (tile.expert < problem_.early && is_first_group(tile)) {
      // Its own block tries, and whoever draws it: the first has it, the second clears up.
      int32_t* const claim = problem_.claim(tile.expert * problem_.gate_up_tiles() + tile.row);
      if (atomicAdd(claim, 1) != 0) {
        *claim = 0;
        tile.kind = Tile::kTaken;
      }
    }
    tile.row *= kHalfRows;
    return tile;
  }
  __device__ bool is_first_group(const Tile& tile) const {
    return tile.first == starts_[tile.expert];
  }
  __device__ Tile down_tile(int number) const {
    Tile tile = find(number, problem_.down_tiles());
    tile.kind = Tile::kDown;
    tile.row *= 2 * kHalfRows;
    return tile;
  }
  // An expert's tokens are cut into groups of equal size. `row` is the number of the row tile.
  __device__ Tile find(int number, int row_tiles) const {
    int low = 0, high = problem_.experts;  // the last position with first * row_tiles <= number
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (first_group_[middle] * row_tiles <= number)
        low = middle;
      else
        high = middle;
    }
    const int groups = first_group_[low + 1] - first_group_[low];
    const int local = number - first_group_[low] * row_tiles, expert = expert_at(low);
    const int start = starts_[expert], tokens = starts_[expert + 1] - start;
    const int share = ((tokens + groups - 1) / groups + 7) / 8 * 8;
    const int offset = local % groups * share;
    Tile tile{};
    tile.expert = expert;
    tile.first = start + offset;
    tile.row = local / groups;
    tile.groups = static_cast<uint16_t>(groups);
    tile.count = static_cast<uint8_t>(max(0, min(share, tokens - offset)));
    return tile;
  }

  const int32_t* starts_;
  uint16_t* const first_group_;
  const Problem& problem_;
  int groups_ = 0;
};

}  // namespace vamp::cuda::grouped
