// Both products of the experts by one launch. A block a multiprocessor draws tiles from one list,
// gate and up's of all experts, then down's: one thread asks for their weights, three warps gather
// their tokens, both into a ring in shared memory, two warpgroups multiply. Weights are the matrix
// product's rows (64 and 64 a warpgroup), tokens its columns, so that a tile of fewer tokens costs
// less. Weights never wait for anything but room in the ring; down's tokens wait until all of their
// expert's activations are there, which nearly always were there long before. No block waits for a
// tile that none has drawn, so it does not matter how many blocks run at a time. (Clusters of two
// blocks that share their weights by multicast were no faster at 8,192 tokens and 10% slower below
// 1,024.)
#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/moe_grouped.h"
#include "kernels/cuda/moe_grouped_producers.cuh"
#include "kernels/cuda/pack_bf16.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/vec.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace vamp::cuda {
namespace {

using namespace grouped;

constexpr const char* kName = "moe_grouped_experts";

// A multiplying warpgroup: rows 64 * index ... + 64 of both halves of a tile's weights.
template <int kTokens>
class Consumer {
 public:
  __device__ Consumer(Shared<kTokens>& shared, const Problem& problem, int index)
      : shared_(shared),
        problem_(problem),
        index_(index),
        thread_(static_cast<int>(threadIdx.x) % kWarpgroup) {}

  __device__ void run() {
    for (Turn<kQueue> queue;; queue.advance()) {
      shared_.queued[queue.at].wait(queue.parity);
      const Tile tile = shared_.queue[queue.at];
      __syncwarp();
      if (thread_ % 32 == 0) shared_.taken[queue.at].arrive();
      if (tile.kind == Tile::kEnd) return;
      multiply(tile);
      if (tile.kind == Tile::kGateUp) announce(tile.expert);
    }
  }

 private:
  __device__ void multiply(const Tile& tile) {
    if constexpr (kTokens > 64) {
      switch ((tile.count + 15) / 16) {
        case 5:
          return multiply<80>(tile);
        case 6:
          return multiply<96>(tile);
        case 7:
          return multiply<112>(tile);
        case 8:
          return multiply<128>(tile);
        default:
          break;
      }
    }
    if constexpr (kTokens > 32) {
      if (tile.count > 48) return multiply<64>(tile);
      if (tile.count > 32) return multiply<48>(tile);
    }
    tile.count > 16 ? multiply<32>(tile) : multiply<16>(tile);
  }

  template <int kColumns>
  __device__ void multiply(const Tile& tile) {
    int out_row[kColumns / kRowStep];  // of the tokens that this thread writes
#pragma unroll
    for (int i = 0; i < kColumns / kRowStep; ++i) {
      const int token = thread_ / 8 + i * kRowStep, place = tile.first + token;
      out_row[i] = -1;
      if (tile.kind != Tile::kUnused && token < tile.count)
        out_row[i] = tile.kind == Tile::kGateUp ? place : problem_.pairs[place];
    }
    float sum[2][kColumns / 2] = {};
    int previous = -1;
    for (int steps = problem_.steps(tile); steps > 0; --steps) {
      shared_.full[ring_.at].wait(ring_.parity);
      const uint64_t b = matrix_descriptor(shared_.tokens[ring_.at]);
      pin_registers(sum[0]);
      pin_registers(sum[1]);
      wgmma_begin();
#pragma unroll
      for (int step = 0; step < kDepth / 16; ++step) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint64_t a =
              matrix_descriptor(shared_.weights[ring_.at][half] + index_ * 64 * kDepth);
          wgmma<kColumns>(a + 2 * step, b + 2 * step, sum[half]);
        }
      }
      wgmma_commit();
      pin_registers(sum[0]);
      pin_registers(sum[1]);
      wgmma_wait<1>();
      if (previous >= 0) release(previous);
      previous = ring_.at;
      ring_.advance();
    }
    wgmma_wait<0>();
    pin_registers(sum[0]);
    pin_registers(sum[1]);
    release(previous);
    const int row = tile.row + index_ * 64;
    if (tile.kind == Tile::kGateUp) {
#pragma unroll
      for (int i = 0; i < kColumns / 2; ++i) {
        const float gate = sum[0][i];
        sum[0][i] = __fdividef(gate, 1.0f + __expf(-gate)) * sum[1][i];
      }
      store<kColumns>(out_row, sum[0], problem_.activation, problem_.intermediate, row);
    } else {
      store<kColumns>(out_row, sum[0], problem_.y, problem_.hidden, row);
      store<kColumns>(out_row, sum[1], problem_.y, problem_.hidden, row + kHalfRows);
    }
  }

  // This warpgroup's share of an expert's activations has been written.
  __device__ void announce(int expert) {
    sync_warpgroup();
    if (thread_ == 0)
      asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(problem_.done(expert))
                   : "memory");
  }

  __device__ void release(int stage) {
    if (thread_ % 32 == 0) shared_.empty[stage].arrive();
  }
  __device__ void sync_warpgroup() {
    asm volatile("bar.sync %0, %1;" ::"r"(1 + index_), "n"(kWarpgroup) : "memory");
  }

  // sum [64 rows, kColumns tokens], to the tokens' rows of `out` [.., rows] from column `row` on.
  template <int kColumns>
  __device__ void store(const int (&out_row)[kColumns / kRowStep], const float (&sum)[kColumns / 2],
                        bf16* out, int rows, int row) {
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
    if (row + chunk * 8 >= rows) return;
#pragma unroll
    for (int i = 0; i < kColumns / kRowStep; ++i) {
      if (out_row[i] < 0) continue;
      const int token = thread_ / 8 + i * kRowStep;
      *reinterpret_cast<uint4*>(out + static_cast<size_t>(out_row[i]) * rows + row + chunk * 8) =
          *reinterpret_cast<const uint4*>(staging + token * 128 + ((chunk ^ (token % 8)) * 16));
    }
  }

  Shared<kTokens>& shared_;
  const Problem& problem_;
  const int index_, thread_;
  Turn<Shared<kTokens>::kStages> ring_;
};

template <int kTokens>
__global__ void __launch_bounds__(kThreads, 1)
    experts_kernel(const __grid_constant__ CUtensorMap gate_up,
                   const __grid_constant__ CUtensorMap down,
                   const __grid_constant__ Problem problem) {
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<Shared<kTokens>*>(memory);
  WeightsProducer<kTokens> weights(shared, problem, gate_up, down);
  if (threadIdx.x == 0) {
    prefetch_map(gate_up);
    prefetch_map(down);
    for (int s = 0; s < Shared<kTokens>::kStages; ++s) {
      shared.full[s].init(1 + kTokenThreads);
      shared.empty[s].init(kConsumerWarps);
    }
    for (int q = 0; q < kQueue; ++q) {
      shared.queued[q].init(1);
      shared.taken[q].init(kTokenWarps + kConsumerWarps);
    }
    fence_barrier_init();
    weights.begin_early();
  }
  wait_for_previous();
  allow_next();
  if (threadIdx.x == 0) weights.draw_first();
  WorkList<kTokens> list(shared, problem);
  if (threadIdx.x >= kWarpgroup) {
    take_registers<208>();
    Consumer<kTokens>(shared, problem, threadIdx.x / kWarpgroup - 1).run();
  } else {
    give_registers<88>();
    if (threadIdx.x >= 32) {
      TokensProducer<kTokens>(shared, problem).run();
    } else {
      if (threadIdx.x == 0) weights.run(list);
    }
  }
}

template <int kTokens>
void launch(const MoeWeights& weights, Problem problem, int pairs, bool in_place,
            cudaStream_t stream) {
  const int H = problem.hidden, I = problem.intermediate, E = problem.experts;
  const auto map = [&](const void* matrices, int cols, int rows, size_t stride) {
    return bf16_tensor_map(matrices, cols, rows, E, stride, kHalfRows,
                           kStreams<kTokens> ? CU_TENSOR_MAP_L2_PROMOTION_L2_128B
                                             : CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  };
  int device = 0, sms = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), "device attributes");
  const int gate_up_tiles = (I + kHalfRows - 1) / kHalfRows,
            down_tiles = (H + kHalfRows - 1) / kHalfRows;
  const int groups = pairs / kTokens + std::min(pairs, E);  // at most
  const int blocks = std::min(sms, groups * (gate_up_tiles + down_tiles));
  // Where few experts are chosen most would be read for nothing, and the others late for it.
  if (in_place && pairs >= E && !problem.part.first && kStreams<kTokens>)
    problem.early = std::min(E, std::min(blocks, kMoeEarlyTiles) / gate_up_tiles);
  constexpr size_t kBytes = sizeof(Shared<kTokens>);
  const auto kernel = experts_kernel<kTokens>;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes), kName);
  const CUtensorMap gate_up = map(weights.gate_up, H, 2 * I, weights.gate_up_stride),
                    down = map(weights.down, I, H, weights.down_stride);
  if (problem.part.first && problem.part.from)
    launch_after_all(kName, kernel, blocks, kThreads, kBytes, stream, gate_up, down, problem);
  else
    launch_overlapped(kName, kernel, blocks, kThreads, kBytes, stream, gate_up, down, problem);
}

}  // namespace

void moe_grouped_experts(const bf16* x, int tokens, const MoeShape& shape,
                         const MoeWeights& weights, const Routing& routing, bf16* activation,
                         bf16* y, cudaStream_t stream, ExpertPart part, bool in_place) {
  const int H = shape.hidden, I = shape.intermediate, pairs = tokens * shape.top_k;
  VAMP_CHECK(H % 8 == 0 && I % 8 == 0 && shape.experts <= kRoutingMaxExperts && routing.progress &&
                 weights.gate_up_stride % 16 == 0 && weights.down_stride % 16 == 0,
             "{}: hidden {}, intermediate {}, experts {}", kName, H, I, shape.experts);
  if (pairs == 0) return;
  const Problem problem{x,
                        activation,
                        y,
                        routing.expert_start,
                        routing.pairs,
                        routing.progress,
                        shape.experts,
                        shape.top_k,
                        H,
                        I,
                        part,
                        /*early=*/0};
  const int mean = pairs / shape.experts;
  const auto with = mean <= 16 ? launch<32> : mean <= 32 ? launch<64> : launch<128>;
  with(weights, problem, pairs, in_place, stream);
}

}  // namespace vamp::cuda
