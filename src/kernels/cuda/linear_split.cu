// A cluster of blocks shares a tile of 64 weight rows and up to 64 tokens: each takes a run of K,
// brought by the copy unit into a ring in shared memory and multiplied by one warpgroup; then each
// block adds up what all have for its share of the tokens, in their order.
#include <cooperative_groups.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/linear_split.h"
#include "kernels/cuda/pack_bf16.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/vec.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace vamp::cuda {
namespace {

namespace cg = cooperative_groups;
using bf16 = __nv_bfloat16;

constexpr int kDepth = kTensorMapCols;  // of K in a stage
constexpr int kMaxSplit = 8;
constexpr int kBlocksPerSm = 2;
constexpr int kRingBytes = 96 * 1024;
constexpr int kWarpgroup = 128, kThreads = kWarpgroup + 32;  // and a warp that copies
constexpr int kRows = 64;                                    // of a tile
constexpr int kSumRow = kRows + 4;  // padded, so that a warp's writes spread over banks

template <int kTokens>
struct Shared {
  static constexpr int kStageBytes = (kRows + kTokens) * kDepth * 2;
  static constexpr int kStages = std::min(8, kRingBytes / kStageBytes);
  union {
    struct {
      bf16 weights[kStages][kRows * kDepth];
      bf16 tokens[kStages][kTokens * kDepth];
    };
    float sums[kTokens][kSumRow];
  };
  Barrier full[kStages], empty[kStages];
};

struct Output {
  void* data;
  int64_t stride;
  const float* bias;
  LinearPart::Out kind;
  int tokens, rows;
};

// Brings this block's run of K: steps [first, last).
template <int kTokens>
__device__ void produce(Shared<kTokens>& shared, const CUtensorMap& weights,
                        const CUtensorMap& tokens, int row, int token, int first, int last) {
  using S = Shared<kTokens>;
  const auto copy_weights = [&](int stage, int step) {
    shared.full[stage].arrive_expecting(S::kStageBytes);
    copy_box(shared.weights[stage], weights, shared.full[stage], step * kDepth, row, 0);
  };
  const auto copy_tokens = [&](int stage, int step) {
    copy_box(shared.tokens[stage], tokens, shared.full[stage], step * kDepth, token, 0);
  };
  const int filled = min(S::kStages, last - first);
  for (int i = 0; i < filled; ++i) copy_weights(i, first + i);
  wait_for_previous();
  for (int i = 0; i < filled; ++i) copy_tokens(i, first + i);
  int stage = 0;
  uint32_t parity = 0;
  for (int step = first + filled; step < last; ++step) {
    shared.empty[stage].wait(parity);
    copy_weights(stage, step);
    copy_tokens(stage, step);
    if (++stage == S::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
}

// sum += the tile's rows times all tokens, over `steps` stages.
template <int kTokens>
__device__ void consume(Shared<kTokens>& shared, int steps, float (&sum)[kTokens / 2]) {
  using S = Shared<kTokens>;
  const auto release = [&](int stage) {
    if (threadIdx.x % 32 == 0) shared.empty[stage].arrive();
  };
  int stage = 0, previous = -1;
  uint32_t parity = 0;
  for (int i = 0; i < steps; ++i) {
    shared.full[stage].wait(parity);
    const uint64_t a = matrix_descriptor(shared.weights[stage]),
                   b = matrix_descriptor(shared.tokens[stage]);
    pin_registers(sum);
    wgmma_begin();
#pragma unroll
    for (int k = 0; k < kDepth / 16; ++k) wgmma<kTokens>(a + 2 * k, b + 2 * k, sum);
    wgmma_commit();
    pin_registers(sum);
    wgmma_wait<1>();
    if (previous >= 0) release(previous);
    previous = stage;
    if (++stage == S::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
  wgmma_wait<0>();
  pin_registers(sum);
}

// Writes four neighbouring rows' sums of a token out.
__device__ void finish(float4 sum, int t, int n, const Output& out) {
  if (t >= out.tokens || n >= out.rows) return;
  if (out.bias) {
    const float4 bias = *reinterpret_cast<const float4*>(out.bias + n);
    sum = make_float4(sum.x + bias.x, sum.y + bias.y, sum.z + bias.z, sum.w + bias.w);
  }
  const int64_t at = t * out.stride + n;
  if (out.kind == LinearPart::Out::kFloat) {
    *reinterpret_cast<float4*>(static_cast<float*>(out.data) + at) = sum;
    return;
  }
  uint2* const place = reinterpret_cast<uint2*>(static_cast<bf16*>(out.data) + at);
  if (out.kind == LinearPart::Out::kResidual) {
    const uint2 old = *place;
    sum = make_float4(sum.x + bf16_low(old.x), sum.y + bf16_high(old.x), sum.z + bf16_low(old.y),
                      sum.w + bf16_high(old.y));
  }
  *place = make_uint2(pack_bf16(sum.x, sum.y), pack_bf16(sum.z, sum.w));
}

template <int kTokens>
__global__ void __launch_bounds__(kThreads, kBlocksPerSm)
    split_kernel(const __grid_constant__ CUtensorMap weights,
                 const __grid_constant__ CUtensorMap tokens, int steps, int split, Output out) {
  using S = Shared<kTokens>;
  extern __shared__ __align__(1024) char memory[];
  auto& shared = *reinterpret_cast<Shared<kTokens>*>(memory);
  const int token_tiles = (out.tokens + kTokens - 1) / kTokens, tile = blockIdx.x / split;
  const int rank = blockIdx.x % split, first_row = tile / token_tiles * kRows,
            first_token = tile % token_tiles * kTokens;
  const int first = steps * rank / split, last = steps * (rank + 1) / split;
  const bool copies = threadIdx.x >= kWarpgroup;
  allow_next();
  if (threadIdx.x == kWarpgroup) {
    for (int s = 0; s < S::kStages; ++s) {
      shared.full[s].init(1);
      shared.empty[s].init(kWarpgroup / 32);
    }
    fence_barrier_init();
  }
  __syncthreads();
  float sum[kTokens / 2] = {};
  if (!copies) {
    wait_for_previous();
    consume(shared, last - first, sum);
  } else {
    if (threadIdx.x == kWarpgroup)
      produce(shared, weights, tokens, first_row, first_token, first, last);
    wait_for_previous();
    __syncwarp();
  }
  __syncthreads();  // the ring is not in use any more: sums take its place
  if (!copies) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < kTokens / 8; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float* const to = &shared.sums[8 * j + 2 * (lane % 4) + e][row];
        to[0] = sum[4 * j + e];
        to[8] = sum[4 * j + 2 + e];
      }
    }
  }
  const cg::cluster_group cluster = cg::this_cluster();
  const auto sync_all = [&] { split == 1 ? __syncthreads() : cluster.sync(); };
  sync_all();
  constexpr int kFours = kRows / 4;
  const int share = (min(kTokens, out.tokens - first_token) + split - 1) / split;
  for (int i = threadIdx.x; i < share * kFours; i += kThreads) {
    const int at = rank * share + i / kFours, t = min(kTokens - 1, at), row = i % kFours * 4;
    float4 part[kMaxSplit];
#pragma unroll
    for (int from = 0; from < kMaxSplit; ++from) {
      if (from < split)
        part[from] = *reinterpret_cast<const float4*>(
            split == 1 ? &shared.sums[t][row]
                       : cluster.map_shared_rank(&shared.sums[t][row], from));
    }
    float4 total{};
#pragma unroll
    for (int from = 0; from < kMaxSplit; ++from) {
      if (from < split)
        total = make_float4(total.x + part[from].x, total.y + part[from].y, total.z + part[from].z,
                            total.w + part[from].w);
    }
    if (at < kTokens) finish(total, first_token + at, first_row + row, out);
  }
  sync_all();  // others may still read this block's sums
}

template <int kTokens>
struct Launcher {
  static constexpr int kBytes = sizeof(Shared<kTokens>);

  static auto kernel() {
    const auto kernel = split_kernel<kTokens>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
          "linear_split's shared memory");
    return kernel;
  }
  // Clusters of so many blocks that run at a time.
  static int clusters_at_a_time(int split) {
    static std::array<std::atomic<int>, kMaxSplit + 1> known{};
    if (const int clusters = known[static_cast<size_t>(split)]) return clusters;
    const int clusters = max_active_clusters("asking for linear_split's clusters", kernel(), split,
                                             kThreads, kBytes);
    known[static_cast<size_t>(split)] = clusters;
    return clusters;
  }
  static int tiles_of(const LinearPart& part, int rows) {
    return (part.weight.rows + kRows - 1) / kRows * ((rows + kTokens - 1) / kTokens);
  }
  // Blocks a tile of the weights is shared by: as many as still run all at once; 0: not even one.
  static int split_of(const LinearPart& part, int rows) {
    const int tiles = tiles_of(part, rows);
    const int steps = (part.weight.cols + kDepth - 1) / kDepth;
    for (int split = std::min(kMaxSplit, steps); split >= 1; --split)
      if (tiles <= clusters_at_a_time(split)) return split;
    return 0;
  }
  static void launch(const bf16* x, int rows, const LinearPart& part, cudaStream_t stream) {
    const int N = part.weight.rows, K = part.weight.cols;
    const int split = std::max(1, split_of(part, rows));
    const auto map = [K](const void* data, int matrix_rows, int box) {
      return bf16_tensor_map(data, K, matrix_rows, 1, static_cast<size_t>(matrix_rows) * K * 2,
                             box);
    };
    const Output out{part.out, part.out_stride, part.bias, part.kind, rows, N};
    launch_overlapped_clusters("linear_split", kernel(), tiles_of(part, rows) * split, kThreads,
                               kBytes, stream, split, map(part.weight.data, N, kRows),
                               map(x, rows, kTokens), (K + kDepth - 1) / kDepth, split, out);
  }
};

// Calls f with the Launcher that fits `rows` tokens.
template <typename F>
auto with_launcher(int rows, F&& f) {
  if (rows <= 16) return f(Launcher<16>{});
  if (rows <= 32) return f(Launcher<32>{});
  return f(Launcher<64>{});
}

}  // namespace

bool linear_split_takes(const LinearPart& part, int rows) {
  return rows <= kSplitMaxRows &&
         with_launcher(rows, [&](auto launcher) { return launcher.split_of(part, rows) > 0; });
}

void linear_split(const bf16* x, int rows, const LinearPart& part, cudaStream_t stream) {
  VAMP_CHECK(rows >= 1 && rows <= kSplitMaxRows && part.weight.rows % 8 == 0 &&
                 part.weight.cols % 8 == 0 && part.weight.dtype == DType::kBf16 &&
                 part.out_stride % 4 == 0,
             "linear_split: {} rows, {} x {}", rows, part.weight.rows, part.weight.cols);
  with_launcher(rows, [&](auto launcher) { launcher.launch(x, rows, part, stream); });
}

}  // namespace vamp::cuda
