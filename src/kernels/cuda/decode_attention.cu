#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/skinny_gemm.cuh"
#include "kernels/cuda/vec.cuh"

namespace vamp::cuda {
namespace {

namespace cg = cooperative_groups;
using bf16 = __nv_bfloat16;

// A warp takes 16 tokens at a time: their keys and values come to its own shared memory by
// asynchronous copies, a few such pages ahead; nothing is shared between warps until the end of the
// piece.
constexpr int kPage = 16;
constexpr int kWarps = 4;
constexpr int kRows = 16;  // of the tensor-core tile: the query heads of one KV head

template <int D>
struct Pipeline {
  static constexpr int kStages = D == 256 ? 2 : 3;
  static constexpr int kChunks = D / 8;  // 16-byte chunks of a row
  uint4 k[kStages][kPage][kChunks];
  uint4 v[kStages][kPage][kChunks];
};
template <int D>
struct Shared {
  union {
    Pipeline<D> pages[kWarps];
    float out[kWarps][kRows][D];
  };
  float most[kWarps][kRows], sum[kWarps][kRows];
  // Of the piece, read by the whole cluster.
  float piece_out[kRows][D];
  float piece_most[kRows], piece_sum[kRows];
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

// Rows are spread over banks: chunk c of row r lies at c ^ (r % 8).
__device__ __forceinline__ int swizzle(int row, int chunk) {
  return chunk ^ (row & 7);
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

template <int D>
__device__ void copy_page(const Args& a, Pipeline<D>& pages, int stage, int page,
                          const int32_t* blocks, int kv_head) {
  constexpr int kChunks = Pipeline<D>::kChunks;
  const int lane = threadIdx.x % 32, per_block = a.layout.block_tokens / kPage;
  const int64_t base = blocks[page / per_block] * a.layout.block_stride() +
                       a.layout.k_offset(0, kv_head, page % per_block * kPage);
#pragma unroll
  for (int i = 0; i < kPage * kChunks / 32; ++i) {
    const int chunk = i * 32 + lane, row = chunk / kChunks, column = chunk % kChunks;
    const bf16* from = a.k + base + row * a.layout.token_stride() + column * 8;
    skinny::copy16_async(shared_address(&pages.k[stage][row][swizzle(row, column)]), from, true);
    skinny::copy16_async(shared_address(&pages.v[stage][row][swizzle(row, column)]),
                         from + a.layout.v_offset(), true);
  }
}

__device__ __forceinline__ void load_transposed(const void* p, uint32_t (&r)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared_address(p)));
}

__device__ __forceinline__ uint32_t pack(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// State of one warp: rows g and g + 8 of the heads, dims 8 i + 2 c and the next.
template <int D>
struct Accumulator {
  float out[D / 8][4] = {};
  float most[2] = {-INFINITY, -INFINITY};
  float sum[2] = {};
};

// Folds one page into the accumulator. `valid`: tokens of it that count.
template <int D>
__device__ void attend_page(const Pipeline<D>& pages, int stage, int valid,
                            const Bf16x8 (&q)[2][D / 32], float scale_log2, Accumulator<D>& acc) {
  const int lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
  float score[2][4] = {};
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    const int row = tile * 8 + group;
#pragma unroll
    for (int j = 0; j < D / 32; ++j) {
      const uint4 k = pages.k[stage][row][swizzle(row, j * 4 + quad)];
      skinny::mma(score[tile], q[0][j].bits.x, q[1][j].bits.x, q[0][j].bits.y, q[1][j].bits.y, k.x,
                  k.y);
      skinny::mma(score[tile], q[0][j].bits.z, q[1][j].bits.z, q[0][j].bits.w, q[1][j].bits.w, k.z,
                  k.w);
    }
  }
  uint32_t p[4];  // the probabilities as the first operand of the product with V
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float most = acc.most[half];
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& s = score[tile][2 * half + e];
        s = tile * 8 + 2 * quad + e < valid ? s * scale_log2 : -INFINITY;
        most = fmaxf(most, s);
      }
    }
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    const float shrink = exp2f(acc.most[half] - most);
    acc.most[half] = most;
    float sum = 0;
#pragma unroll
    for (int tile = 0; tile < 2; ++tile) {
      const float a = exp2f(score[tile][2 * half] - most),
                  b = exp2f(score[tile][2 * half + 1] - most);
      sum += a + b;
      p[2 * tile + half] = pack(a, b);
    }
    acc.sum[half] = acc.sum[half] * shrink + sum;
#pragma unroll
    for (int i = 0; i < D / 8; ++i) {
      acc.out[i][2 * half] *= shrink;
      acc.out[i][2 * half + 1] *= shrink;
    }
  }
  // Lane l addresses row l % 16 of the page, the even or the odd 8 dims of a 16-wide strip.
  const int row = lane % 16, odd = lane / 16;
#pragma unroll
  for (int i = 0; i < D / 16; ++i) {
    uint32_t v[4];
    load_transposed(&pages.v[stage][row][swizzle(row, 2 * i + odd)], v);
    skinny::mma(acc.out[2 * i], p[0], p[1], p[2], p[3], v[0], v[1]);
    skinny::mma(acc.out[2 * i + 1], p[0], p[1], p[2], p[3], v[2], v[3]);
  }
}

// The warps' results of one piece, joined in order.
template <int D>
__device__ void join_warps(Shared<D>& shared, Accumulator<D>& acc, int rows) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
  __syncthreads();  // pages are done with: `out` shares their memory
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = acc.sum[half];
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const int row = group + 8 * half;
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
  for (int i = threadIdx.x; i < rows * D; i += kWarps * 32) {
    const int row = i / D, d = i % D;
    float most = shared.most[0][row];
#pragma unroll
    for (int w = 1; w < kWarps; ++w) most = fmaxf(most, shared.most[w][row]);
    float out = 0, sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float weight =
          shared.most[w][row] == -INFINITY ? 0.0f : exp2f(shared.most[w][row] - most);
      out += weight * shared.out[w][row][d];
      sum += weight * shared.sum[w][row];
    }
    shared.piece_out[row][d] = out;
    if (d == 0) {
      shared.piece_most[row] = most;
      shared.piece_sum[row] = sum;
    }
  }
}

// The pieces' results, joined in order; each block of the cluster does its share of the outputs.
template <int D>
__device__ void join_pieces(cg::cluster_group& cluster, Shared<D>& shared, int used, int rows,
                            bf16* out) {
  const int pieces = static_cast<int>(cluster.num_blocks()),
            mine = static_cast<int>(cluster.block_rank());
  for (int i = mine * kWarps * 32 + threadIdx.x; i < rows * D; i += pieces * kWarps * 32) {
    const int row = i / D, d = i % D;
    float most = -INFINITY;
    for (int p = 0; p < used; ++p)
      most = fmaxf(most, *cluster.map_shared_rank(&shared.piece_most[row], p));
    float value = 0, sum = 0;
#pragma unroll 4
    for (int p = 0; p < used; ++p) {
      const float weight = exp2f(*cluster.map_shared_rank(&shared.piece_most[row], p) - most);
      value += weight * *cluster.map_shared_rank(&shared.piece_out[row][d], p);
      sum += weight * *cluster.map_shared_rank(&shared.piece_sum[row], p);
    }
    out[i] = __float2bfloat16(value / sum);
  }
}

template <int D>
__global__ void __launch_bounds__(kWarps * 32) decode_kernel(const __grid_constant__ Args a) {
  extern __shared__ __align__(128) char memory[];
  auto& shared = *reinterpret_cast<Shared<D>*>(memory);
  constexpr int kStages = Pipeline<D>::kStages;
  allow_next();
  wait_for_previous();
  const int pieces = gridDim.x, piece = blockIdx.x, kv_head = blockIdx.y, sequence = blockIdx.z;
  const int rows = a.shape.num_heads / a.shape.kv_heads;
  const int context = a.batch.context[sequence];
  // Whole rounds of the warps, so that every piece but the last has the same length.
  const int pages = (context + kPage - 1) / kPage;
  const int per_piece = ((pages + pieces - 1) / pieces + kWarps - 1) / kWarps * kWarps;
  const int used = per_piece == 0 ? 0 : (pages + per_piece - 1) / per_piece;
  const int first = min(pages, piece * per_piece), end = min(pages, first + per_piece);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 4, quad = lane % 4;
  const int32_t* blocks = a.batch.block_ids + a.batch.block_start[sequence];
  Pipeline<D>& mine = shared.pages[warp];

  int ahead = first + warp;
#pragma unroll
  for (int stage = 0; stage < kStages - 1; ++stage, ahead += kWarps) {
    if (ahead < end) copy_page(a, mine, stage, ahead, blocks, kv_head);
    skinny::commit_copies();
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
    if (ahead < end) copy_page(a, mine, (stage + kStages - 1) % kStages, ahead, blocks, kv_head);
    skinny::commit_copies();
    skinny::wait_copies<kStages - 1>();
    __syncwarp();
    attend_page(mine, stage, context - page * kPage, queries, a.scale_log2, acc);
    stage = (stage + 1) % kStages;
  }
  skinny::wait_copies<0>();

  if (first < end) join_warps(shared, acc, rows);
  cg::cluster_group cluster = cg::this_cluster();
  cluster.sync();
  join_pieces(cluster, shared, used, rows,
              a.out + (static_cast<int64_t>(sequence) * a.shape.num_heads + kv_head * rows) * D);
  cluster.sync();  // nobody leaves while its results are still read
}

template <int D>
void launch(const Args& args, int pieces, cudaStream_t stream) {
  const auto kernel = decode_kernel<D>;
  check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared<D>)),
      "decode_attention's shared memory");
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1),
        "decode_attention's cluster size");
  const dim3 grid(pieces, args.shape.kv_heads, args.batch.sequences);
  launch_overlapped_clusters("decode_attention", kernel, grid, kWarps * 32, sizeof(Shared<D>),
                             stream, pieces, args);
}

}  // namespace

int decode_attention_pieces(int sequences, const DecodeShape& shape) {
  // About two blocks on each of 132 multiprocessors; a cluster has at most 16.
  const int wanted = 264 / std::max(1, sequences * shape.kv_heads);
  return wanted >= 12 ? 16 : wanted >= 6 ? 8 : wanted >= 3 ? 4 : wanted >= 2 ? 2 : 1;
}

void decode_attention(const bf16* q, int64_t q_stride, const DecodeBatch& batch,
                      const DecodeShape& shape, const KvCache& cache, int layer, float scale,
                      bf16* out, cudaStream_t stream) {
  VAMP_CHECK(shape.num_heads % shape.kv_heads == 0 && shape.num_heads / shape.kv_heads <= kRows &&
                 cache.layout.block_tokens % kPage == 0 && cache.layout.dtype == DType::kBf16 &&
                 q_stride % 8 == 0,
             "decode_attention: {} heads, {} KV heads, blocks of {} tokens", shape.num_heads,
             shape.kv_heads, cache.layout.block_tokens);
  if (batch.sequences == 0) return;
  const Args args{q,
                  q_stride,
                  batch,
                  shape,
                  static_cast<const bf16*>(cache.arena) + layer * cache.layout.layer_stride(),
                  cache.layout,
                  scale * 1.4426950408889634f,
                  out};
  const int pieces = decode_attention_pieces(batch.sequences, shape);
  switch (shape.head_dim) {
    case 64:
      return launch<64>(args, pieces, stream);
    case 128:
      return launch<128>(args, pieces, stream);
    case 256:
      return launch<256>(args, pieces, stream);
    default:
      VAMP_CHECK(false, "decode_attention: head_dim {}", shape.head_dim);
  }
}

}  // namespace vamp::cuda
