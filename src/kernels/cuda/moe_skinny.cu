#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/moe_skinny.h"
#include "kernels/cuda/skinny_gemm.cuh"

namespace vamp::cuda {
namespace {

using bf16 = __nv_bfloat16;
template <int kRowTiles>
using Partial = float[skinny::kWarps][skinny::kTokens][skinny::Shared<kRowTiles>::kRows];
static_assert(kRoutingWorkTokens == skinny::kTokens);

__device__ const bf16* expert_matrix(const void* base, size_t stride, int expert) {
  return reinterpret_cast<const bf16*>(static_cast<const char*>(base) + expert * stride);
}

// Tiles run over work items (an expert and up to 16 of its pairs), then over the expert's rows.
// Outputs of a tile are dealt to threads as (column = thread / outputs, output = thread % outputs),
// in kRounds rounds of columns.
template <int kOutputs>
struct MoeTiles {
  static constexpr int kColumns = std::min(skinny::kTokens, skinny::kThreads / kOutputs);
  static constexpr int kRounds = skinny::kTokens / kColumns;

  MoeWeights weights;
  Routing routing;
  MoeShape shape;
  int tiles_per_item;
  ExpertPart part;

  struct Cursor {
    int index = -1;
    WorkItem work;
    int output_pair[kRounds];  // whose outputs this thread finishes, or -1
  };
  __device__ void begin(Cursor&, int) const {}
  // Looks the tile's work item up unless it is the one at hand; true when it is another.
  __device__ bool find(Cursor& cursor, int tile) const {
    const int index = tile / tiles_per_item;
    if (index == cursor.index) return false;
    cursor.index = index;
    cursor.work = routing.work[index];
    return true;
  }
  __device__ int pair(const Cursor& cursor, int column) const {
    return column < cursor.work.count ? routing.pairs[cursor.work.first + column] : -1;
  }
  __device__ int tile_in_item(const Cursor& cursor, int tile) const {
    return tile - cursor.index * tiles_per_item;
  }
  // The pairs whose rows this lane multiplies.
  __device__ bool find_pairs(Cursor& cursor, int tile, int group, int& p0, int& p1) const {
    if (!find(cursor, tile)) return false;
    p0 = pair(cursor, group);
    p1 = pair(cursor, group + 8);
#pragma unroll
    for (int r = 0; r < kRounds; ++r) {
      const int column = threadIdx.x / kOutputs;
      cursor.output_pair[r] = column < kColumns ? pair(cursor, r * kColumns + column) : -1;
    }
    return true;
  }
};

// A tile is 8 gate rows and the 8 up rows of the same indices.
constexpr int kGateRows = 8;
struct GateUpTiles : MoeTiles<kGateRows> {
  static constexpr bool kFollowsMoe = false;
  static constexpr int kRowTiles = 2;
  const bf16* x;
  bf16* activation;

  __device__ const void* any() const { return weights.gate_up; }
  __device__ const bf16* row(Cursor& cursor, int tile, int r) const {
    find(cursor, tile);
    const int i = tile_in_item(cursor, tile) * kGateRows + r % kGateRows;
    return expert_matrix(weights.gate_up, weights.gate_up_stride, cursor.work.expert) +
           static_cast<size_t>(i + r / kGateRows * shape.intermediate) * shape.hidden;
  }
  __device__ bool tokens(Cursor& cursor, int tile, int group, const bf16*& x0,
                         const bf16*& x1) const {
    int p0, p1;
    if (!find_pairs(cursor, tile, group, p0, p1)) return false;
    x0 = p0 < 0 ? nullptr : x + static_cast<size_t>(p0 / shape.top_k) * shape.hidden;
    x1 = p1 < 0 ? nullptr : x + static_cast<size_t>(p1 / shape.top_k) * shape.hidden;
    return true;
  }
  __device__ void finish(const Cursor& cursor, int tile, const Partial<kRowTiles>& partial) const {
    if (cursor.output_pair[0] < 0) return;
    const int column = threadIdx.x / kGateRows, r = threadIdx.x % kGateRows;
    const float gate = skinny::total(partial, column, r);
    const float up = skinny::total(partial, column, r + kGateRows);
    activation[static_cast<size_t>(cursor.output_pair[0]) * shape.intermediate +
               tile_in_item(cursor, tile) * kGateRows + r] = __float2bfloat16(silu(gate) * up);
  }
};

// More rows a tile where they are short, so that a tile's end weighs less.
template <int kTheRowTiles>
struct DownTiles : MoeTiles<8 * kTheRowTiles> {
  using Base = MoeTiles<8 * kTheRowTiles>;
  using Cursor = typename Base::Cursor;
  static constexpr bool kFollowsMoe = true;
  static constexpr int kRowTiles = kTheRowTiles, kRows = 8 * kRowTiles;
  const bf16* activation;
  float* y;

  __device__ const void* any() const { return this->weights.down; }
  __device__ const bf16* row(Cursor& cursor, int tile, int r) const {
    this->find(cursor, tile);
    const int h = this->tile_in_item(cursor, tile) * kRows + r;
    if (h >= this->shape.hidden) return nullptr;
    return expert_matrix(this->weights.down, this->weights.down_stride, cursor.work.expert) +
           static_cast<size_t>(h) * this->shape.intermediate;
  }
  __device__ bool tokens(Cursor& cursor, int tile, int group, const bf16*& x0,
                         const bf16*& x1) const {
    int p0, p1;
    if (!this->find_pairs(cursor, tile, group, p0, p1)) return false;
    const int I = this->shape.intermediate;
    x0 = p0 < 0 ? nullptr : activation + static_cast<size_t>(p0) * I;
    x1 = p1 < 0 ? nullptr : activation + static_cast<size_t>(p1) * I;
    return true;
  }
  __device__ void finish(const Cursor& cursor, int tile, const Partial<kRowTiles>& partial) const {
    const int column = threadIdx.x / kRows, r = threadIdx.x % kRows;
    const int h = this->tile_in_item(cursor, tile) * kRows + r;
    if (h >= this->shape.hidden) return;
#pragma unroll
    for (int round = 0; round < Base::kRounds; ++round) {
      if (cursor.output_pair[round] < 0) continue;
      y[static_cast<size_t>(cursor.output_pair[round]) * this->shape.hidden + h] =
          skinny::total(partial, round * Base::kColumns + column, r);
    }
  }
};

template <int kHalves, int kSteps, typename Tiles>
__global__ void __launch_bounds__(skinny::kThreads, skinny::kBlocksPerSm)
    moe_kernel(Tiles tiles, int K) {
  extern __shared__ __align__(16) char memory[];
  // Routing, and whatever staged the weights, must have ended before gate_up reads either: it
  // waits. The next kernel is let go only then, so that `down`, which follows, may fill its
  // pipeline at once and waits for the activations alone.
  if constexpr (!Tiles::kFollowsMoe) wait_for_previous();
  allow_next();
  int first_item = 0, num_items = *tiles.routing.num_work;
  if (tiles.part.first) {
    const int middle = tiles.routing.work_start[*tiles.part.first];
    first_item = tiles.part.from ? middle : 0;
    num_items = tiles.part.from ? num_items - middle : middle;
  }
  const int first_tile = first_item * tiles.tiles_per_item;
  const int num_tiles = num_items * tiles.tiles_per_item;
  skinny::run<Tiles::kRowTiles, kHalves, kSteps, /*kWaitAfterFill=*/Tiles::kFollowsMoe>(
      tiles, first_tile + skinny::first_tile(num_tiles, blockIdx.x),
      first_tile + skinny::first_tile(num_tiles, blockIdx.x + 1), K,
      *reinterpret_cast<skinny::Shared<Tiles::kRowTiles>*>(memory));
}

template <typename Tiles>
void launch(const Tiles& tiles, int tokens, int K, const char* name, cudaStream_t stream) {
  VAMP_CHECK(!tiles.part.first || tiles.routing.work_start, "{}: a part without work_start", name);
  const int most = max_work_items(tokens, tiles.shape) * tiles.tiles_per_item;
  constexpr int kBytes = sizeof(skinny::Shared<Tiles::kRowTiles>);
  // An expert has no more pairs than there are tokens.
  skinny::with_shape(tokens, K, [&](auto halves, auto steps) {
    const auto kernel = moe_kernel<halves.value, steps.value, Tiles>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), name);
    const int blocks = skinny::grid_size(most);
    if (!Tiles::kFollowsMoe && tiles.part.from)
      launch_after_all(name, kernel, blocks, skinny::kThreads, kBytes, stream, tiles, K);
    else
      launch_overlapped(name, kernel, blocks, skinny::kThreads, kBytes, stream, tiles, K);
  });
}

}  // namespace

void moe_skinny_gate_up(const __nv_bfloat16* x, int tokens, const MoeShape& shape,
                        const MoeWeights& weights, const Routing& routing,
                        __nv_bfloat16* activation, cudaStream_t stream, ExpertPart part) {
  VAMP_CHECK(shape.intermediate % 8 == 0 && shape.hidden % 8 == 0 && weights.dtype == DType::kBf16,
             "moe_skinny: hidden {}, intermediate {}", shape.hidden, shape.intermediate);
  if (tokens == 0) return;
  launch(
      GateUpTiles{{weights, routing, shape, shape.intermediate / kGateRows, part}, x, activation},
      tokens, shape.hidden, "moe_skinny_gate_up", stream);
}

void moe_skinny_down(const __nv_bfloat16* activation, int tokens, const MoeShape& shape,
                     const MoeWeights& weights, const Routing& routing, float* y,
                     cudaStream_t stream, ExpertPart part) {
  if (tokens == 0) return;
  const auto run = [&](auto row_tiles) {
    using Tiles = DownTiles<row_tiles.value>;
    const int tiles = (shape.hidden + Tiles::kRows - 1) / Tiles::kRows;
    launch(Tiles{{weights, routing, shape, tiles, part}, activation, y}, tokens, shape.intermediate,
           "moe_skinny_down", stream);
  };
  if (shape.intermediate <= 256) return run(std::integral_constant<int, 4>{});
  run(std::integral_constant<int, 2>{});
}

}  // namespace vamp::cuda
