// The product of a weight matrix with a few rows, where the weights' bytes are the whole cost.
//
// A block takes kTileRows rows of W [N, K] and up to 8 * kColumnSets columns (tokens). Its warps cut K
// among themselves, so that a matrix of few rows still keeps the memory busy, and their partial sums
// meet in shared memory in the order of the warps: the order of sums depends on K alone, never on
// how many columns there are or where a token stands among them.
//
// Tensor cores at 8 columns: W is the 16-row operand. Each lane loads 16 contiguous bytes of a row,
// which are *eight k of one lane*, whereas mma.m16n8k16 wants k = 2c, 2c+1, 2c+8, 2c+9 of lane c. A
// sum does not mind in which order k runs, so both operands just use the same other order.
#pragma once

#include "kernels/cuda/vec.cuh"

namespace vamp::cuda::skinny {

inline constexpr int kTileRows = 32;      // two mma tiles
inline constexpr int kWarps = 8;
inline constexpr int kThreads = kWarps * 32;
inline constexpr int kStep = 32;          // k per lane-quad load: 4 lanes x 8
inline constexpr int kUnroll = 4;         // loads in flight per row and lane

__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2,
                                    uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Partial sums of one block: [warp][column][row], rows padded against bank conflicts.
template <int kColumnSets>
struct Shared {
  float partial[kWarps][8 * kColumnSets][kTileRows + 1];
};

// `rows[i]`: this lane's row i of W (rows g, g+8, g+16, g+24 of the tile), null beyond N.
// `columns[s]`: this lane's column g of set s in x, null if there is none.
// K is a multiple of 8; every pointer is 16-byte aligned.
template <int kColumnSets>
__device__ __forceinline__ void accumulate(const __nv_bfloat16* const (&rows)[4],
                                           const __nv_bfloat16* const (&columns)[kColumnSets],
                                           int K, Shared<kColumnSets>& shared) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int group = lane / 4, quad = lane % 4;
  float acc[2][kColumnSets][4] = {};
  // Whole steps of 32 k are dealt out to warps in contiguous runs.
  const int steps = (K + kStep - 1) / kStep;
  const int per_warp = (steps + kWarps - 1) / kWarps;
  const int begin = warp * per_warp, end = min(steps, begin + per_warp);
  for (int step = begin; step < end; step += kUnroll) {
    Bf16x8 w[4][kUnroll], x[kColumnSets][kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int k = (step + u) * kStep + quad * 8;
      const bool inside = step + u < end && k < K;
#pragma unroll
      for (int r = 0; r < 4; ++r)
        w[r][u] = inside && rows[r] ? load_weight(rows[r] + k) : Bf16x8{};
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int k = (step + u) * kStep + quad * 8;
      const bool inside = step + u < end && k < K;
#pragma unroll
      for (int s = 0; s < kColumnSets; ++s)
        x[s][u] = inside && columns[s] ? load_bf16x8(columns[s] + k) : Bf16x8{};
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int s = 0; s < kColumnSets; ++s) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          const uint4 a = w[2 * m][u].bits, b = w[2 * m + 1][u].bits, v = x[s][u].bits;
          mma(acc[m][s], a.x, b.x, a.y, b.y, v.x, v.y);
          mma(acc[m][s], a.z, b.z, a.w, b.w, v.z, v.w);
        }
      }
    }
  }
#pragma unroll
  for (int s = 0; s < kColumnSets; ++s) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      const int column = 8 * s + 2 * quad, row = 16 * m + group;
      shared.partial[warp][column][row] = acc[m][s][0];
      shared.partial[warp][column + 1][row] = acc[m][s][1];
      shared.partial[warp][column][row + 8] = acc[m][s][2];
      shared.partial[warp][column + 1][row + 8] = acc[m][s][3];
    }
  }
  __syncthreads();
}

// The finished sum of one output, after accumulate().
template <int kColumnSets>
__device__ __forceinline__ float total(const Shared<kColumnSets>& shared, int column, int row) {
  float sum = shared.partial[0][column][row];
#pragma unroll
  for (int warp = 1; warp < kWarps; ++warp) sum += shared.partial[warp][column][row];
  return sum;
}

}  // namespace vamp::cuda::skinny
