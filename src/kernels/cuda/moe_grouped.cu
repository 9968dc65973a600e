// A persistent block a multiprocessor: one warpgroup brings tiles of weights and tokens into a ring
// in shared memory, two multiply. Weights are the matrix product's rows (64 and 64 a warpgroup),
// tokens its columns, so that a tile of fewer tokens costs less. (Clusters of two blocks that share
// their weights by multicast were no faster at 8,192 tokens and 10% slower below 1,024.)
#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/moe_grouped.h"
#include "kernels/cuda/pack_bf16.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/vec.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace vamp::cuda {
namespace {

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
__device__ int groups_of(int tokens) {
  return (tokens + kTokens - 1) / kTokens;
}

// Fills first_group, by one warp; its last entry is the number of all groups.
__device__ void count_groups(const Problem& problem, uint16_t* first_group) {
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
__device__ Tile find_tile(const Problem& problem, const uint16_t* first_group, int row_tiles,
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

__device__ void copy_weights(Shared& shared, const CUtensorMap& map, int stage, int k, int row,
                             int second_row, int expert) {
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

// A multiplying warpgroup: rows 64 * index ... + 64 of both halves of a tile's weights.
template <bool kGateUp>
class Consumer {
 public:
  __device__ Consumer(Shared& shared, const Problem& problem, int index)
      : shared_(shared),
        problem_(problem),
        index_(index),
        thread_(static_cast<int>(threadIdx.x) % kWarpgroup) {}

  __device__ void run(const Tile& tile) {
    switch ((tile.count + 15) / 16) {
      case 0:
      case 1:
        return multiply<16>(tile);
      case 2:
        return multiply<32>(tile);
      case 3:
        return multiply<48>(tile);
      case 4:
        return multiply<64>(tile);
      case 5:
        return multiply<80>(tile);
      case 6:
        return multiply<96>(tile);
      case 7:
        return multiply<112>(tile);
      default:
        return multiply<128>(tile);
    }
  }

 private:
  template <int kColumns>
  __device__ void multiply(const Tile& tile) {
    int out_row[kColumns / kRowStep];  // of the tokens that this thread writes
#pragma unroll
    for (int i = 0; i < kColumns / kRowStep; ++i) {
      const int token = thread_ / 8 + i * kRowStep, place = tile.first + token;
      out_row[i] = -1;
      if (token < tile.count) out_row[i] = kGateUp ? place : problem_.pairs[place];
    }
    float sum[2][kColumns / 2] = {};
    int previous = -1;
    for (int k = 0; k < problem_.K; k += kDepth) {
      shared_.full[ring_.stage].wait(ring_.parity);
      const uint64_t b = matrix_descriptor(shared_.tokens[ring_.stage]);
      pin_registers(sum[0]);
      pin_registers(sum[1]);
      wgmma_begin();
#pragma unroll
      for (int step = 0; step < kDepth / 16; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint64_t a =
              matrix_descriptor(shared_.weights[ring_.stage][half] + index_ * 64 * kDepth);
          wgmma<kColumns>(a + 2 * step, b + 2 * step, sum[half]);
        }
      }
      wgmma_commit();
      pin_registers(sum[0]);
      pin_registers(sum[1]);
      wgmma_wait<1>();
      if (previous >= 0) release(previous);
      previous = ring_.stage;
      ring_.advance();
    }
    wgmma_wait<0>();
    pin_registers(sum[0]);
    pin_registers(sum[1]);
    release(previous);
    if constexpr (kGateUp) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) {
        const float gate = sum[0][i];
        sum[0][i] = __fdividef(gate, 1.0f + __expf(-gate)) * sum[1][i];
      }
      store<kColumns>(out_row, sum[0], tile.row + index_ * 64);
    } else {
      store<kColumns>(out_row, sum[0], tile.row + index_ * 64);
      store<kColumns>(out_row, sum[1], tile.row + kHalfRows + index_ * 64);
    }
  }

  __device__ void release(int stage) {
    if (thread_ % 32 == 0) shared_.empty[stage].arrive();
  }
  __device__ void sync_warpgroup() {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + index_), "n"(kWarpgroup) : "memory");
  }

  // sum [64 rows, kColumns tokens], to the tokens' rows of the output from column `row` on.
  template <int kColumns>
  __device__ void store(const int (&out_row)[kColumns / kRowStep], const float (&sum)[kColumns / 2],
                        int row) {
    char* const staging = reinterpret_cast<char*>(shared_.out[index_]);
    const int lane = thread_ % 32, warp = thread_ / 32;
    sync_warpgroup();  // whoever still reads what was stored before
#pragma unroll
    for (int j = 0; j < kColumns / 8; j += 2) {
      const uint32_t m[4] = {
          pack_bf16(sum[4 * j], sum[4 * j + 1]), pack_bf16(sum[4 * j + 2], sum[4 * j + 3]),
          pack_bf16(sum[4 * j + 4], sum[4 * j + 5]), pack_bf16(sum[4 * j + 6], sum[4 * j + 7])};
      const int token = 8 * (j + lane / 16) + lane % 8, chunk = warp * 2 + lane / 8 % 2;
      store_transposed(shared_address(staging + token * 128 + ((chunk ^ (token % 8)) * 16)), m);
    }
    sync_warpgroup();
    const int chunk = thread_ % 8;
    if (row + chunk * 8 >= problem_.rows) return;
#pragma unroll
    for (int i = 0; i < kColumns / kRowStep; ++i) {
      if (out_row[i] < 0) continue;
      const int token = thread_ / 8 + i * kRowStep;
      *reinterpret_cast<uint4*>(problem_.out + static_cast<size_t>(out_row[i]) * problem_.rows +
                                row + chunk * 8) =
          *reinterpret_cast<const uint4*>(staging + token * 128 + ((chunk ^ (token % 8)) * 16));
    }
  }

  Shared& shared_;
  const Problem& problem_;
  const int index_, thread_;
  Ring ring_;
};

template <bool kGateUp>
__global__ void __launch_bounds__(kThreads, 1)
    grouped_kernel(const __grid_constant__ CUtensorMap weights,
                   const __grid_constant__ CUtensorMap tokens,
                   const __grid_constant__ Problem problem) {
  extern __shared__ __align__(1024) char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == 0) {
    prefetch_map(weights);
    for (int s = 0; s < kStages; ++s) {
      shared.full[s].init(kGateUp ? kWarpgroup + 1 : 1);
      shared.empty[s].init(kConsumerWarps);
    }
    fence_barrier_init();
  }
  // Routing, and whatever staged the weights, must have ended before gate_up reads either. Down is
  // let go only then, so that it may read both at once and waits for the activations alone.
  if constexpr (kGateUp) wait_for_previous();
  allow_next();
  if (threadIdx.x < 32) count_groups(problem, shared.first_group);
  __syncthreads();
  const int row_tiles = (problem.rows + kRowsPerTile<kGateUp> - 1) / kRowsPerTile<kGateUp>;
  const int tiles = shared.first_group[problem.experts] * row_tiles;
  const auto each_tile = [&](auto&& work) {
    const auto find = [&](int i) {
      return find_tile<kGateUp>(problem, shared.first_group, row_tiles, i);
    };
    const int step = static_cast<int>(gridDim.x);
    int i = static_cast<int>(blockIdx.x);
    if (i >= tiles) return;
    for (Tile tile = find(i); i < tiles; i += step) {
      const Tile next = i + step < tiles ? find(i + step) : tile;  // its loads behind the work
      work.run(tile);
      tile = next;
    }
  };
  if (threadIdx.x >= kWarpgroup) {
    take_registers<232>();
    each_tile(Consumer<kGateUp>(shared, problem, threadIdx.x / kWarpgroup - 1));
  } else {
    give_registers<40>();
    if constexpr (kGateUp) {
      GatherProducer producer(shared, problem, weights);
      each_tile(producer);
      producer.finish();
    } else if (threadIdx.x == 0) {
      each_tile(BoxProducer(shared, problem, weights, tokens));
      wait_for_previous();  // blocks without a tile too: the next kernel relies on it
    }
  }
}

template <bool kGateUp>
void launch(const char* name, const void* matrices, size_t stride, int matrix_rows,
            const bf16* tokens_in, int num_tokens, const MoeShape& shape, const Routing& routing,
            bf16* out, cudaStream_t stream, ExpertPart part) {
  const int rows = kGateUp ? shape.intermediate : shape.hidden;
  const int K = kGateUp ? shape.hidden : shape.intermediate;
  const int pairs = num_tokens * shape.top_k;
  VAMP_CHECK(rows % 8 == 0 && K % 8 == 0 && shape.experts <= kRoutingMaxExperts && stride % 16 == 0,
             "{}: hidden {}, intermediate {}, experts {}", name, shape.hidden, shape.intermediate,
             shape.experts);
  if (pairs == 0) return;
  const CUtensorMap weights =
      bf16_tensor_map(matrices, K, matrix_rows, shape.experts, stride, kHalfRows);
  const CUtensorMap tokens =
      kGateUp
          ? weights
          : bf16_tensor_map(tokens_in, K, pairs, 1, static_cast<size_t>(pairs) * K * 2, kBoxTokens);
  const Problem problem{
      tokens_in, out, routing.expert_start, routing.pairs, shape.experts, shape.top_k, rows,
      K,         part};
  const int groups = pairs / kTokens + std::min(pairs, shape.experts);
  const int tiles = groups * ((rows + kRowsPerTile<kGateUp> - 1) / kRowsPerTile<kGateUp>);
  int device = 0, sms = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), "device attributes");
  const auto kernel = grouped_kernel<kGateUp>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)),
        name);
  const int blocks = std::min(sms, tiles);
  if (kGateUp && part.from)
    launch_after_all(name, kernel, blocks, kThreads, sizeof(Shared), stream, weights, tokens,
                     problem);
  else
    launch_overlapped(name, kernel, blocks, kThreads, sizeof(Shared), stream, weights, tokens,
                      problem);
}

}  // namespace

void moe_grouped_gate_up(const bf16* x, int tokens, const MoeShape& shape,
                         const MoeWeights& weights, const Routing& routing, bf16* activation,
                         cudaStream_t stream, ExpertPart part) {
  launch<true>("moe_grouped_gate_up", weights.gate_up, weights.gate_up_stride,
               2 * shape.intermediate, x, tokens, shape, routing, activation, stream, part);
}

void moe_grouped_down(const bf16* activation, int tokens, const MoeShape& shape,
                      const MoeWeights& weights, const Routing& routing, bf16* y,
                      cudaStream_t stream, ExpertPart part) {
  launch<false>("moe_grouped_down", weights.down, weights.down_stride, shape.hidden, activation,
                tokens, shape, routing, y, stream, part);
}

}  // namespace vamp::cuda
