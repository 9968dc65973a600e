#include <cooperative_groups.h>

#include <algorithm>
#include <array>
#include <atomic>

#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/decode_page.cuh"
#include "kernels/cuda/launch.cuh"

namespace vamp::cuda {
namespace {

namespace cg = cooperative_groups;
using bf16 = __nv_bfloat16;
using decode::Accumulator;
using decode::attend_page;
using decode::kPage;
using decode::kRows;
using decode::Pipeline;

constexpr int kMaxPieces = 16;

template <int D, int kWarps>
struct Shared {
  union {
    Pipeline<D> pages[kWarps];
    float out[kWarps][kRows][D];
  };
  float most[kWarps][kRows], sum[kWarps][kRows];
  // This block's share of the outputs, [piece][rows * D / pieces], and the pieces' row sums:
  // written by the other blocks of the cluster.
  float piece_out[kRows * D];
  float piece_most[kMaxPieces][kRows], piece_sum[kMaxPieces][kRows];
};

struct Args {
  const bf16* q;
  int64_t q_stride;
  DecodeBatch batch;
  DecodeShape shape;
  const bf16* k;  // of the layer, block 0
  KvLayout layout;
  float scale_log2;
  bf16* out;
};

// Starts the copies of page `page` of a context of so many tokens.
template <int D>
__device__ void copy_page(const Args& a, Pipeline<D>& pages, int stage, int page, int context,
                          const int32_t* blocks, int kv_head) {
  const int per_block = a.layout.block_tokens / kPage;
  const bf16* k = a.k + blocks[page / per_block] * a.layout.block_stride() +
                  a.layout.k_offset(0, kv_head, page % per_block * kPage);
  decode::copy_page(pages, stage, k, k + a.layout.v_offset(), context - page * kPage);
}

// Each warp's results into shared memory, where the pages were.
template <int D, int kWarps>
__device__ void put_warp_results(Shared<D, kWarps>& shared, const Accumulator<D>& acc, int rows) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
  __syncthreads();
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = acc.sum[half];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const int row = group + 8 * half;
    if (row >= rows) continue;
    if (quad == 0) {
      shared.most[warp][row] = acc.most[half];
      shared.sum[warp][row] = sum;
    }
#pragma unroll
    for (int i = 0; i < D / 8; ++i)
      *reinterpret_cast<float2*>(&shared.out[warp][row][8 * i + 2 * quad]) = {
          acc.out[i][2 * half], acc.out[i][2 * half + 1]};
  }
  __syncthreads();
}

// The warps' share in a row's result, and the row's largest score.
template <int D, int kWarps>
__device__ float warp_weights(const Shared<D, kWarps>& shared, int row, float (&weight)[kWarps]) {
  float most = shared.most[0][row];
#pragma unroll
  for (int w = 1; w < kWarps; ++w) most = fmaxf(most, shared.most[w][row]);
#pragma unroll
  for (int w = 0; w < kWarps; ++w) weight[w] = exp2f(shared.most[w][row] - most);
  return most;
}

template <typename T>
__device__ __forceinline__ T* of_block(T* mine, int block, int blocks) {
  return blocks == 1 ? mine : cg::this_cluster().map_shared_rank(mine, block);
}

// The warps' results, joined in order, to the block of the cluster that finishes each output: as
// everybody writes what others read, one barrier is enough.
template <int D, int kWarps>
__device__ void send_piece(Shared<D, kWarps>& shared, int piece, int pieces, int rows) {
  const int share = rows * D / pieces;
  float weight[kWarps];
  for (int i = threadIdx.x * 4; i < rows * D; i += kWarps * 32 * 4) {
    const int row = i / D, d = i % D;
    warp_weights(shared, row, weight);
    float4 out{};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 v = *reinterpret_cast<const float4*>(&shared.out[w][row][d]);
      out.x = fmaf(weight[w], v.x, out.x);
      out.y = fmaf(weight[w], v.y, out.y);
      out.z = fmaf(weight[w], v.z, out.z);
      out.w = fmaf(weight[w], v.w, out.w);
    }
    float* mine = &shared.piece_out[piece * share + i % share];
    *reinterpret_cast<float4*>(of_block(mine, i / share, pieces)) = out;
  }
  for (int i = threadIdx.x; i < rows * pieces; i += kWarps * 32) {
    const int row = i / pieces, to = i % pieces;
    const float most = warp_weights(shared, row, weight);
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum = fmaf(weight[w], shared.sum[w][row], sum);
    *of_block(&shared.piece_most[piece][row], to, pieces) = most;
    *of_block(&shared.piece_sum[piece][row], to, pieces) = sum;
  }
}

// The pieces' results, joined in order: this block's share of the outputs.
template <int D, int kWarps>
__device__ void finish(const Shared<D, kWarps>& shared, int piece, int pieces, int used, int rows,
                       bf16* out) {
  const int share = rows * D / pieces;
  for (int i = threadIdx.x; i < share; i += kWarps * 32) {
    const int row = (piece * share + i) / D;
    float most = -INFINITY, value = 0, sum = 0;
    for (int p = 0; p < used; ++p) most = fmaxf(most, shared.piece_most[p][row]);
    for (int p = 0; p < used; ++p) {
      const float weight = exp2f(shared.piece_most[p][row] - most);
      value = fmaf(weight, shared.piece_out[p * share + i], value);
      sum = fmaf(weight, shared.piece_sum[p][row], sum);
    }
    out[piece * share + i] = __float2bfloat16(used == 0 ? 0.0f : value / sum);
  }
}

template <int D, int kWarps>
__global__ void __launch_bounds__(kWarps * 32) decode_kernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(128) char memory[];
  auto& shared = *reinterpret_cast<Shared<D, kWarps>*>(memory);
  constexpr int kStages = Pipeline<D>::kStages;
  allow_next();
  const int pieces = gridDim.x, piece = blockIdx.x, kv_head = blockIdx.y, sequence = blockIdx.z;
  if (pieces > 1)
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");  // I have started
  const int rows = a.shape.num_heads / a.shape.kv_heads;
  const int context = a.batch.context[sequence];
  const int pages = (context + kPage - 1) / kPage, per_piece = (pages + pieces - 1) / pieces;
  const int used = per_piece == 0 ? 0 : (pages + per_piece - 1) / per_piece;
  const int first = min(pages, piece * per_piece), end = min(pages, first + per_piece);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
  const int32_t* blocks = a.batch.block_ids + a.batch.block_start[sequence];
  Pipeline<D>& mine = shared.pages[warp];

  // The new token comes from a kernel in front: its page, the context's last, must wait.
  const int settled = min(end, (context - 1) / kPage);
  int ahead = first + warp;
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage, ahead += kWarps) {
    if (ahead < settled) copy_page(a, mine, stage, ahead, context, blocks, kv_head);
    skinny::commit_copies();
  }
  wait_for_previous();
  if (settled < end && settled < ahead && (settled - first) % kWarps == warp) {
    copy_page(a, mine, (settled - first) / kWarps, settled, context, blocks, kv_head);
    skinny::commit_copies();
    skinny::wait_copies<0>();
  }
  const bf16* q = a.q + sequence * a.q_stride + static_cast<int64_t>(kv_head) * rows * D;
  Bf16x8 queries[2][D / 32];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int j = 0; j < D / 32; ++j) {
      const int row = group + 8 * half;
      queries[half][j] = row < rows ? load_bf16x8(q + row * D + j * 32 + quad * 8) : Bf16x8{};
    }
  }
  Accumulator<D> acc;
  int stage = 0;
  for (int page = first + warp; page < end; page += kWarps, ahead += kWarps) {
    __syncwarp();  // everybody has read the stage that is filled next
    if (ahead < end)
      copy_page(a, mine, (stage + kStages - 1) % kStages, ahead, context, blocks, kv_head);
    skinny::commit_copies();
    skinny::wait_copies<kStages - 1>();
    __syncwarp();
    attend_page(mine, stage, context - page * kPage, queries, a.scale_log2, acc);
    stage = (stage + 1) % kStages;
  }
  skinny::wait_copies<0>();

  if (first < end) put_warp_results(shared, acc, rows);
  if (pieces > 1) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");  // all have started
  if (first < end) send_piece(shared, piece, pieces, rows);
  if (pieces > 1) {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  } else {
    __syncthreads();
  }
  finish(shared, piece, pieces, used, rows,
         a.out + (static_cast<int64_t>(sequence) * a.shape.num_heads + kv_head * rows) * D);
}

// Launching D's kernel of kWarps warps a block.
template <int D, int kWarps>
struct Launcher {
  static constexpr int kBytes = sizeof(Shared<D, kWarps>);
  static auto kernel() {
    const auto kernel = decode_kernel<D, kWarps>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
          "decode_attention's shared memory");
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
          "decode_attention's cluster size");
    return kernel;
  }
  // Clusters of so many blocks that run at a time.
  static int clusters_at_a_time(int pieces) {
    static std::array<std::atomic<int>, kMaxPieces + 1> known{};
    if (const int clusters = known[pieces]) return clusters;
    const int clusters = max_active_clusters("asking for decode_attention's clusters", kernel(),
                                             pieces, kWarps * 32, kBytes);
    known[pieces] = clusters;
    return clusters;
  }
  static void launch(const Args& args, int pieces, cudaStream_t stream) {
    const dim3 grid(pieces, args.shape.kv_heads, args.batch.sequences);
    launch_overlapped_clusters("decode_attention", kernel(), grid, kWarps * 32, kBytes, stream,
                               pieces, args);
  }
};

// As many pieces as run all at once: a second wave of a few clusters would double the time. Blocks
// fill a multiprocessor each; with more contexts than that, two smaller ones share it.
template <int D>
void launch_of_dim(const Args& args, cudaStream_t stream) {
  using Large = Launcher<D, D == 256 ? 4 : 8>;
  const int clusters = args.batch.sequences * args.shape.kv_heads;
  for (int pieces = kMaxPieces; pieces >= 1; pieces /= 2)
    if (clusters <= Large::clusters_at_a_time(pieces)) return Large::launch(args, pieces, stream);
  Launcher<D, 4>::launch(args, 1, stream);
}

}  // namespace

void decode_attention(const bf16* q, int64_t q_stride, const DecodeBatch& batch,
                      const DecodeShape& shape, const KvCache& cache, int layer, float scale,
                      bf16* out, cudaStream_t stream) {
  const KvLayout& layout = cache.layout;
  VAMP_CHECK(shape.num_heads % shape.kv_heads == 0 && shape.num_heads / shape.kv_heads <= kRows &&
                 layout.block_tokens % kPage == 0 && layout.dtype == DType::kBf16 &&
                 q_stride % 8 == 0,
             "decode_attention: {} heads, {} KV heads, blocks of {} tokens", shape.num_heads,
             shape.kv_heads, layout.block_tokens);
  if (batch.sequences == 0) return;
  const Args args{q,
                  q_stride,
                  batch,
                  shape,
                  static_cast<const bf16*>(cache.arena) + layer * layout.layer_stride(),
                  layout,
                  scale * 1.4426950408889634f,
                  out};
  switch (shape.head_dim) {
    case 64:
      return launch_of_dim<64>(args, stream);
    case 128:
      return launch_of_dim<128>(args, stream);
    case 256:
      return launch_of_dim<256>(args, stream);
    default:
      VAMP_CHECK(false, "decode_attention: head_dim {}", shape.head_dim);
  }
}

}  // namespace vamp::cuda
