// A persistent block a multiprocessor: one warpgroup brings tiles of weights and tokens into a ring
// in shared memory, two multiply. Weights are the matrix product's rows (64 and 64 a warpgroup),
// tokens its columns, so that a tile of fewer tokens costs less. (Clusters of two blocks that share
// their weights by multicast were no faster at 8,192 tokens and 10% slower below 1,024.)
#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/moe_grouped.h"
#include "kernels/cuda/moe_grouped_tiles.cuh"
#include "kernels/cuda/pack_bf16.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/vec.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace vamp::cuda {
namespace {

using namespace grouped;

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
