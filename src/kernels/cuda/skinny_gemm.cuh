// The product of weight rows with up to 16 tokens, where reading the weights is the whole cost.
//
// A block takes tiles of 8 or 16 weight rows; its 8 warps cut K among themselves in contiguous
// runs, so that even a matrix of few rows keeps the memory busy. Tensor cores (mma.m16n8k16):
// tokens are the 16-row operand, weights the 8-column one.
//
// Each lane needs only weights that it loads itself: 16 bytes (8 k) of row lane/4 a step. So every
// lane runs a private pipeline of asynchronous copies through its own slots of shared memory,
// without any synchronisation, and the pipeline runs on over the borders of tiles. A warp's k are
// the same in every tile, so its share of the tokens stays in registers. The 8 k of one lane are
// not the k that mma assigns to it (2c, 2c+1, 2c+8, 2c+9), but a sum does not mind the order of k
// as long as both operands use the same one.
//
// The order of a sum depends on K alone: never on how many tokens there are or where one stands
// among them.
#pragma once

#include <type_traits>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vec.cuh"

namespace vamp::cuda::skinny {

inline constexpr int kTileRows = 8;
inline constexpr int kTokens = 16;  // of one tile, at most
inline constexpr int kWarps = 8;
inline constexpr int kThreads = kWarps * 32;
inline constexpr int kStep = 32;   // k of one step of a warp: 4 lanes x 8
inline constexpr int kDepth = 16;  // copies in flight per lane
inline constexpr int kBlocksPerSm = 2;

__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// 16 bytes to shared memory past L1; zeros where `valid` is false.
__device__ __forceinline__ void copy16_async(uint32_t shared, const void* global, bool valid) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(valid ? 16 : 0));
}
__device__ __forceinline__ void commit_copies() {
  asm volatile("cp.async.commit_group;");
}
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

template <int kRowTiles>
struct Shared {
  static constexpr int kRows = kRowTiles * kTileRows;
  static constexpr int kSlots = kDepth / kRowTiles;
  uint4 ring[kSlots][kRowTiles][kThreads];
  // Partial sums of a tile, twice: a tile's are read while the next one's are written.
  float partial[2][kWarps][kTokens][kRows];
};

// What `Tiles` must offer, for tiles of kRowTiles * 8 rows:
//   const void* any()                       some valid device address
//   const bf16* row(cursor, tile, r)        weight row r of the tile; null: none
//   bool tokens(cursor, tile, group, x0, x1)
//                                           this lane's input rows, of tokens `group` and 8 more
//                                           (null: none); returns whether they differ from the
//                                           tile before's
//   void begin(cursor, tile)                what finish will need may be asked for
//   void finish(cursor, tile, partial)      takes the sums, see total()
// and a Cursor type, in which it may remember what it looked up.
//
// kSteps: steps of one warp in one tile, ceil(K / 256); 0: as many as K needs, tokens read from L1
// each time. kHalves: 1 for at most 8 tokens, 2 for 16. kWaitAfterFill: the weights may be read
// while the kernel before still runs.
template <int kRowTiles, int kHalves, int kSteps, bool kWaitAfterFill, typename Tiles>
__device__ __forceinline__ void run(const Tiles& tiles, int first, int last, int K,
                                    Shared<kRowTiles>& shared) {
  using bf16 = __nv_bfloat16;
  constexpr int kSlots = Shared<kRowTiles>::kSlots;
  if (first >= last) {
    if constexpr (kWaitAfterFill) wait_for_previous();
    return;
  }
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = lane / 4, quad = lane % 4;
  const int per_tile = kSteps > 0 ? kSteps : (K + kStep * kWarps - 1) / (kStep * kWarps);
  const int k_first = warp * per_tile * kStep + quad * 8;
  const uint32_t ring =
      static_cast<uint32_t>(__cvta_generic_to_shared(&shared.ring[0][0][threadIdx.x]));

  // The copying end of the pipeline.
  typename Tiles::Cursor ahead;
  int ahead_tile = first, ahead_step = 0, ahead_slot = 0;
  const bf16* ahead_row[kRowTiles];
  const auto find_rows = [&] {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) ahead_row[i] = tiles.row(ahead, ahead_tile, group + 8 * i);
  };
  find_rows();
  const auto copy_next = [&] {
    if (ahead_tile < last) {
      const int k = k_first + ahead_step * kStep;
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        const bool valid = ahead_row[i] != nullptr && k < K;
        copy16_async(
            ring + (ahead_slot * kRowTiles + i) * static_cast<uint32_t>(sizeof(uint4) * kThreads),
            valid ? ahead_row[i] + k : tiles.any(), valid);
      }
      if (++ahead_step == per_tile) {
        ahead_step = 0;
        if (++ahead_tile < last) find_rows();
      }
      if (++ahead_slot == kSlots) ahead_slot = 0;
    }
    commit_copies();
  };
#pragma unroll
  for (int i = 0; i < kSlots - 1; ++i) copy_next();
  if constexpr (kWaitAfterFill) wait_for_previous();

  typename Tiles::Cursor here;
  constexpr int kHeld = kSteps > 0 ? kSteps : 1;
  Bf16x8 x[kHeld][2] = {};
  const bf16 *x0 = nullptr, *x1 = nullptr;
  const auto load_tokens = [&](Bf16x8(&to)[2], int k) {
    to[0] = x0 != nullptr && k < K ? load_bf16x8(x0 + k) : Bf16x8{};
    if constexpr (kHalves == 2) to[1] = x1 != nullptr && k < K ? load_bf16x8(x1 + k) : Bf16x8{};
  };
  int slot = 0;
  for (int tile = first; tile < last; ++tile) {
    if (tiles.tokens(here, tile, group, x0, x1) && kSteps > 0) {
#pragma unroll
      for (int step = 0; step < kHeld; ++step) load_tokens(x[step], k_first + step * kStep);
    }
    tiles.begin(here, tile);
    float acc[kRowTiles][4] = {};
    const auto one_step = [&](Bf16x8(&t)[2]) {
      copy_next();
      wait_copies<kSlots - 1>();
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        const uint4 w = shared.ring[slot][i][threadIdx.x];
        mma(acc[i], t[0].bits.x, t[1].bits.x, t[0].bits.y, t[1].bits.y, w.x, w.y);
        mma(acc[i], t[0].bits.z, t[1].bits.z, t[0].bits.w, t[1].bits.w, w.z, w.w);
      }
      if (++slot == kSlots) slot = 0;
    };
    if constexpr (kSteps > 0) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step) one_step(x[step]);
    } else {
      for (int step = 0; step < per_tile; ++step) {
        load_tokens(x[0], k_first + step * kStep);
        one_step(x[0]);
      }
    }
    auto& partial = shared.partial[(tile - first) & 1];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i) {
      *reinterpret_cast<float2*>(&partial[warp][group][8 * i + 2 * quad]) = {acc[i][0], acc[i][1]};
      if constexpr (kHalves == 2)
        *reinterpret_cast<float2*>(&partial[warp][group + 8][8 * i + 2 * quad]) = {acc[i][2],
                                                                                   acc[i][3]};
    }
    __syncthreads();
    tiles.finish(here, tile, partial);
  }
}

// The finished sum of one output, over warps in order.
template <int kRows>
__device__ __forceinline__ float total(const float (&partial)[kWarps][kTokens][kRows], int token,
                                       int row) {
  float sum = partial[0][token][row];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) sum += partial[warp][token][row];
  return sum;
}

// Tiles are dealt out in contiguous runs, so that a block's tiles share their tokens.
__device__ __forceinline__ int first_tile(int tiles, int block) {
  return static_cast<int>(static_cast<int64_t>(tiles) * block / gridDim.x);
}

// Blocks of a launch over `tiles` tiles at most.
int grid_size(int tiles);

// Calls f(halves, steps) with the compile-time constants that fit `tokens` and K.
template <typename F>
void with_shape(int tokens, int K, F&& f) {
  const auto with_steps = [&](auto halves) {
    const int steps = (K + kStep * kWarps - 1) / (kStep * kWarps);
    if (steps <= 1) return f(halves, std::integral_constant<int, 1>{});
    if (steps <= 2) return f(halves, std::integral_constant<int, 2>{});
    if (steps <= 3) return f(halves, std::integral_constant<int, 3>{});
    if (steps <= 4) return f(halves, std::integral_constant<int, 4>{});
    if (steps <= 6) return f(halves, std::integral_constant<int, 6>{});
    if (steps <= 8) return f(halves, std::integral_constant<int, 8>{});
    if constexpr (halves.value == 1) {
      if (steps <= 16) return f(halves, std::integral_constant<int, 16>{});
    }
    f(halves, std::integral_constant<int, 0>{});
  };
  if (tokens <= 8) return with_steps(std::integral_constant<int, 1>{});
  with_steps(std::integral_constant<int, 2>{});
}

}  // namespace vamp::cuda::skinny
