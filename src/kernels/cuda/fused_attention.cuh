// Attention of the fused decode step. Each block takes a piece of a sequence's context for the
// query heads of one KV head; then the pieces are joined.
#pragma once

#include "kernels/cuda/decode_page.cuh"
#include "kernels/cuda/fused_stream.cuh"
#include "kernels/cuda/pack_bf16.cuh"

namespace vamp::cuda::fused {

constexpr int kChunks = kHeadDim / 8;  // of 16 bytes, of a head

struct PieceShared {
  // Queries, normed and rotated, and the new token's key and value, if the context's last page is
  // this block's.
  uint4 queries[kMaxRows][kChunks], key[kChunks], value[kChunks];
  float most[kWarps][kMaxRows], sum[kWarps][kMaxRows];
  int stage[kWarps];  // of a warp's last page
};

// A head by one warp: waited for, normed where there is a weight, and rotated. A lane has values 2
// lane, 2 lane + 1 and their partners 64 further.
__device__ __forceinline__ void bring_head(const Args& a, const bf16* from, const float* weight,
                                           const float* angles, uint4 (&to)[kChunks]) {
  const int lane = threadIdx.x % 32;
  const uint32_t* words = reinterpret_cast<const uint32_t*>(from) + lane;
  const float2 cosine = __ldg(reinterpret_cast<const float2*>(angles) + lane),
               sine = __ldg(reinterpret_cast<const float2*>(angles + kHeadDim / 2) + lane);
  float2 w[2] = {};
  if (weight) {
    w[0] = __ldg(reinterpret_cast<const float2*>(weight) + lane);
    w[1] = __ldg(reinterpret_cast<const float2*>(weight + kHeadDim / 2) + lane);
  }
  uint32_t low, high;
  do {
    low = peek4(words);
    high = peek4(words + kHeadDim / 4);
  } while (__any_sync(0xffffffffu, low == kUnwritten || high == kUnwritten));
  float x[2][2] = {{bf16_low(low), bf16_high(low)}, {bf16_low(high), bf16_high(high)}};
  if (weight) {
    const float squares =
        warp_sum(x[0][0] * x[0][0] + x[0][1] * x[0][1] + x[1][0] * x[1][0] + x[1][1] * x[1][1]);
    const float scale = rsqrtf(squares / kHeadDim + a.shape.eps);
    const float more = a.shape.one_plus ? 1.0f : 0.0f;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      x[half][0] *= scale * (more + w[half].x);
      x[half][1] *= scale * (more + w[half].y);
    }
  }
  uint32_t* out = reinterpret_cast<uint32_t*>(to) + lane;
  out[0] = pack_bf16(x[0][0] * cosine.x - x[1][0] * sine.x, x[0][1] * cosine.y - x[1][1] * sine.y);
  out[kHeadDim / 4] =
      pack_bf16(x[1][0] * cosine.x + x[0][0] * sine.x, x[1][1] * cosine.y + x[0][1] * sine.y);
}

// The new token's key, which `shared` has, and value, to the cache and for the page in shared
// memory.
__device__ __forceinline__ void keep_token(const Args& a, const FusedLayer& layer, const Unit& u,
                                           const bf16* value, PieceShared& shared) {
  const int lane = threadIdx.x % 32, slot = a.batch.kv_slots[u.token];
  const KvLayout& layout = a.batch.cache.layout;
  uint4 mine{};
  bool waits = false;
  do {
    if (lane < kChunks) {
      mine = peek16(reinterpret_cast<const uint4*>(value) + lane);
      waits = unwritten(mine);
    }
  } while (__any_sync(0xffffffffu, waits));
  if (lane < kChunks) {
    shared.value[lane] = mine;
    if (slot >= 0) {
      bf16* cached = static_cast<bf16*>(a.batch.cache.arena) +
                     slot / layout.block_tokens * layout.block_stride() +
                     layout.k_offset(static_cast<int>(layer.cache_layer), u.kv_head,
                                     slot % layout.block_tokens);
      reinterpret_cast<uint4*>(cached)[lane] = shared.key[lane];
      reinterpret_cast<uint4*>(cached + layout.v_offset())[lane] = mine;
    }
  }
}

// An 8x8 matrix of b16 transposed: a thread has row lane / 4, columns 2 (lane % 4) and the next.
__device__ __forceinline__ uint32_t transpose(uint32_t pair) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}
// A 16-byte chunk `c` of a token's keys or values in a page, as the copy unit swizzles rows of 128
// bytes.
__device__ __forceinline__ char* page_chunk(char* stage, int token, int c, bool value) {
  char* const row =
      stage + (value ? kPageBytes / 2 : 0) + c / 8 * (kPageTokens * 128) + token * 128;
  return row + ((c % 8) ^ (token % 8)) * 16;
}

// Of one warp, for heads 2 (lane % 4) and the next: outputs of dims 16 i + lane / 4 ([0, 1]) and 8
// further ([2, 3]); sums of the scores of tokens lane / 4 and 8 further alone.
struct Piece {
  float out[kHeadDim / 16][4] = {};
  float most[2] = {-INFINITY, -INFINITY}, sum[2] = {};
};

// Folds the page in a stage into the piece. `valid`: tokens of it that count.
__device__ __forceinline__ void attend_page(const Lane& me, char* stage, int valid,
                                            const Bf16x8 (&q)[kHeadDim / 32], float scale_log2,
                                            Piece& piece) {
  constexpr int kTiles = kPageTokens / 8;
  const int lane = me.lane, group = me.group, quad = me.quad;
  float score[4] = {};  // of tokens `group` and 8 further
#pragma unroll
  for (int j = 0; j < kHeadDim / 32; ++j) {
    uint4 k[2] = {};
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      k[tile] =
          *reinterpret_cast<const uint4*>(page_chunk(stage, tile * 8 + group, j * 4 + quad, false));
    skinny::mma(score, k[0].x, k[1].x, k[0].y, k[1].y, q[j].bits.x, q[j].bits.y);
    skinny::mma(score, k[0].z, k[1].z, k[0].w, k[1].w, q[j].bits.z, q[j].bits.w);
  }
  float shrink[2];
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    float most = piece.most[e];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      float& s = score[2 * tile + e];
      s = tile * 8 + group < valid ? s * scale_log2 : -INFINITY;
      most = fmaxf(most, s);
    }
#pragma unroll
    for (int away = 4; away < 32; away *= 2)
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, away));
    shrink[e] = exp2f(piece.most[e] - most);
    piece.most[e] = most;
    piece.sum[e] *= shrink[e];
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      float& s = score[2 * tile + e];
      s = exp2f(s - most);
      piece.sum[e] += s;
    }
  }
  uint32_t p[kTiles];  // the probabilities as the second operand of the product with V
#pragma unroll
  for (int tile = 0; tile < kTiles; ++tile)
    p[tile] = transpose(pack_bf16(score[2 * tile], score[2 * tile + 1]));
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) piece.out[i][e] *= shrink[e % 2];
  }
  // Matrices: tokens 0-7 of both chunks of 16 dims, then tokens 8-15 of them.
  const int token = lane % 8 + lane / 16 * 8, odd = lane / 8 % 2;
#pragma unroll
  for (int i = 0; i < kHeadDim / 16; ++i) {
    uint32_t v[4];
    decode::load_transposed(page_chunk(stage, token, 2 * i + odd, true), v);
    skinny::mma(piece.out[i], v[0], v[1], v[2], v[3], p[0], p[1]);
  }
}

// This block's piece. The warps leave their results where their last pages were.
__device__ inline void attend(const Args& a, const FusedLayer& layer, uint32_t epoch, const Unit& u,
                              Stream& stream, Ring& ring, PieceShared& shared) {
  if (u.token < 0) return;
  static_assert(kStages >= kWarps);  // the warps' last pages stay until all have been joined
  const Lane me;
  const int warp = me.warp, lane = me.lane, group = me.group, quad = me.quad;
  const int rows = a.shape.heads / a.shape.kv_heads;
  const bf16* row = a.in.of(epoch) + static_cast<int64_t>(u.token) * a.in_row;
  const int newest = (u.context - 1) / kPageTokens;  // the page of the new token
  const bool has_newest = newest < u.end && newest >= u.first;
#pragma unroll 1
  for (int r = warp; r < rows + (has_newest ? 1 : 0); r += kWarps) {
    const bool is_key = r == rows;
    const bf16* key = row + (a.shape.heads + u.kv_head) * kHeadDim;
    bring_head(a, is_key ? key : row + (u.kv_head * rows + r) * kHeadDim,
               is_key ? layer.k_norm : layer.q_norm, a.batch.cos_sin + u.token * kHeadDim,
               is_key ? shared.key : shared.queries[r]);
    if (!is_key) continue;
    __syncwarp();
    keep_token(a, layer, u, key + a.shape.kv_heads * kHeadDim, shared);
  }
  sync_consumers();
  const float scale_log2 = a.shape.scale * 1.4426950408889634f;
  Piece piece;
  int page = u.first + warp;
  const bool has_page = page < u.end;
  if (has_page) {
    Bf16x8 q[kHeadDim / 32];
#pragma unroll
    for (int j = 0; j < kHeadDim / 32; ++j)
      q[j].bits = shared.queries[min(group, rows - 1)][j * 4 + quad];
    stream.pass(warp);
#pragma unroll 1
    while (true) {
      char* const stage = stream.stage();
      stream.wait();
      if (page == newest) {
        if (lane < kChunks) {
          const int token = (u.context - 1) % kPageTokens;
          *reinterpret_cast<uint4*>(page_chunk(stage, token, lane, false)) = shared.key[lane];
          *reinterpret_cast<uint4*>(page_chunk(stage, token, lane, true)) = shared.value[lane];
          fence_async_shared();
        }
        __syncwarp();
      }
      attend_page(me, stage, u.context - page * kPageTokens, q, scale_log2, piece);
      if (page + kWarps >= u.end) break;
      stream.release(me, /*for_all=*/true);
      stream.pass(kWarps);
      page += kWarps;
    }
    __syncwarp();
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      float sum = piece.sum[e];
#pragma unroll
      for (int away = 4; away < 32; away *= 2) sum += __shfl_xor_sync(0xffffffffu, sum, away);
      if (group > 0) continue;
      shared.most[warp][2 * quad + e] = piece.most[e];
      shared.sum[warp][2 * quad + e] = sum;
    }
    // Rows of kHeadDim floats, dims moved by the row so that banks differ.
    float* const room = reinterpret_cast<float*>(stream.stage());
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = 2 * quad + e % 2, d = (16 * i + group + e / 2 * 8) ^ (quad * 8);
        room[r * kHeadDim + d] = piece.out[i][e];
      }
    }
    if (lane == 0) shared.stage[warp] = stream.number();
  }
  sync_consumers();
  if (warp < rows) {
    const int r = warp, used = min(kWarps, u.end - u.first);
    float most = -INFINITY, sum = 0;
    float4 v{};
#pragma unroll 1
    for (int w = 0; w < used; ++w) most = fmaxf(most, shared.most[w][r]);
#pragma unroll 1
    for (int w = 0; w < used; ++w) {
      const float weight = exp2f(shared.most[w][r] - most);
      sum = fmaf(weight, shared.sum[w][r], sum);
      const float* out =
          reinterpret_cast<const float*>(ring.stages[shared.stage[w]]) + r * kHeadDim;
      const float4 from = *reinterpret_cast<const float4*>(out + ((lane * 4) ^ (r / 2 * 8)));
      v.x = fmaf(weight, from.x, v.x);
      v.y = fmaf(weight, from.y, v.y);
      v.z = fmaf(weight, from.z, v.z);
      v.w = fmaf(weight, from.w, v.w);
    }
    const int64_t at = static_cast<int64_t>(blockIdx.x) * kMaxRows + r;
    const auto bits = [](float f) { return __float_as_uint(f); };
    const uint4 none = {kUnwritten, kUnwritten, kUnwritten, kUnwritten};
    put16(a.partial.of(epoch) + at * kHeadDim + lane * 4,
          {bits(v.x), bits(v.y), bits(v.z), bits(v.w)});
    put16(a.partial.of(epoch + 1) + at * kHeadDim + lane * 4, none);
    if (lane < 2) publish(a.scores, epoch, at * 2 + lane, bits(lane == 0 ? most : sum));
  }
  sync_consumers();
  if (has_page) {
    fence_async_shared();  // room was written here, which the copy unit will write next
    stream.release(me, /*for_all=*/true);
    stream.pass(u.end - page);
  } else {
    stream.pass(u.end - u.first);
  }
}

// The pieces of every sequence, in order: a warp joins 32 dims of a head.
__device__ inline void join_pieces(const Args& a, uint32_t epoch) {
  constexpr int kParts = kHeadDim / 32, kTogether = 4;
  const int heads = a.shape.heads, rows = heads / a.shape.kv_heads;
  const int groups = a.tokens * a.shape.kv_heads;
  const Lane me;
  const int d4 = me.lane % 8, mine = me.lane / 8;
#pragma unroll 1
  for (int chunk = static_cast<int>(blockIdx.x) + me.warp * static_cast<int>(gridDim.x);
       chunk < a.tokens * heads * kParts; chunk += static_cast<int>(gridDim.x) * kWarps) {
    const int part = chunk % kParts, head = chunk / kParts % heads, t = chunk / kParts / heads;
    const int context = a.batch.attention.context[t];
    const int pages = (context + kPageTokens - 1) / kPageTokens;
    const int per_piece = pages_a_piece(pages, groups), used = (pages + per_piece - 1) / per_piece;
    const int group = t * a.shape.kv_heads + head / rows, row = head % rows;
    float most = -INFINITY, sum = 0, value[4] = {};
#pragma unroll 1
    for (int first = 0; first < used; first += 4 * kTogether) {
      uint2 scores[kTogether];
      uint4 v[kTogether];
      bool waits;
      do {
        waits = false;
#pragma unroll
        for (int i = 0; i < kTogether; ++i) {
          const int p = first + mine + 4 * i;
          const int64_t at = static_cast<int64_t>(p * groups + group) * kMaxRows + row;
          scores[i] = {0xff800000u, 0};  // -infinity
          v[i] = {};
          if (p >= used) continue;
          scores[i] = peek8(a.scores.of(epoch) + at);
          v[i] = peek16(a.partial.of(epoch) + at * kHeadDim + part * 32 + d4 * 4);
        }
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          waits |= unwritten(v[i]) || scores[i].x == kUnwritten || scores[i].y == kUnwritten;
      } while (__any_sync(0xffffffffu, waits));
      float here = most;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) here = fmaxf(here, __uint_as_float(scores[i].x));
      const float shrink = here == -INFINITY ? 0.0f : exp2f(most - here);
      most = here;
      sum *= shrink;
#pragma unroll
      for (float& x : value) x *= shrink;
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        const float score = __uint_as_float(scores[i].x);
        const float weight = score == -INFINITY ? 0.0f : exp2f(score - most);
        const uint32_t of[4] = {v[i].x, v[i].y, v[i].z, v[i].w};
        sum = fmaf(weight, __uint_as_float(scores[i].y), sum);
#pragma unroll
        for (int e = 0; e < 4; ++e) value[e] = fmaf(weight, __uint_as_float(of[e]), value[e]);
      }
    }
    float all = most;
    all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, 8));
    all = fmaxf(all, __shfl_xor_sync(0xffffffffu, all, 16));
    const float share = most == -INFINITY ? 0.0f : exp2f(most - all);
    float of[5] = {value[0] * share, value[1] * share, value[2] * share, value[3] * share,
                   sum * share};
#pragma unroll
    for (float& f : of) {
      f += __shfl_xor_sync(0xffffffffu, f, 8);
      f += __shfl_xor_sync(0xffffffffu, f, 16);
    }
    const float scale = used == 0 ? 0.0f : 1.0f / of[4];
    const int64_t word =
        (static_cast<int64_t>(t) * heads + head) * (kHeadDim / 2) + part * 16 + d4 * 2;
    if (mine < 2)
      publish(a.mixed, epoch, word + mine,
              mine == 0 ? pack_bf16(of[0] * scale, of[1] * scale)
                        : pack_bf16(of[2] * scale, of[3] * scale));
  }
}

}  // namespace vamp::cuda::fused
