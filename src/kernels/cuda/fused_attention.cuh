// Attention of the fused decode step. Each block takes a piece of a sequence's context for the
// query heads of one KV head; fused_join.cuh joins the pieces.
#pragma once

#include "kernels/cuda/decode_page.cuh"
#include "kernels/cuda/fused_stream.cuh"
#include "kernels/cuda/pack_bf16.cuh"

namespace vamp::cuda::fused {

template <typename Kind>
struct PieceShared {
  static constexpr int kChunks = Kind::kHeadDim / 8;  // of 16 bytes, of a head
  // Queries, normed and rotated, and the new token's key and value, if the context's last page is
  // this block's.
  uint4 queries[kMaxRows][kChunks], key[kChunks], value[kChunks];
  float most[kWarps][kMaxRows], sum[kWarps][kMaxRows];
  const float* results[kWarps];  // where a warp's last page was
  // What each quarter of a warp's lanes joined: largest score and sum.
  float2 joined_scores[kWarps][4];
};

// A head by one warp: waited for, normed where there is a weight, and rotated. A lane has values 2
// lane, 2 lane + 1 and their partners 64 further.
__device__ __forceinline__ void bring_head(const Args& a, const bf16* from, const float* weight,
                                           const float* angles, uint4 (&to)[16]) {
  constexpr int kHeadDim = 128;
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

// The same of heads of 256 values, of which 64 are rotated. A lane has 8 of them.
__device__ __forceinline__ void bring_head(const Args& a, const bf16* from, const float* weight,
                                           const float* angles, uint4 (&to)[32]) {
  constexpr int kHalf = Qwen3NextKind::kRotary / 2;
  const int lane = threadIdx.x % 32, angle = lane * 8 % kHalf;
  const bool rotated = lane * 8 < 2 * kHalf;
  float w[8], cosine[8], sine[8], x[8];
  if (weight) load_floats(weight + lane * 8, w);
  load_floats(angles + angle, cosine);
  load_floats(angles + kHalf + angle, sine);
  uint4 bits;
  do {
    bits = peek16(reinterpret_cast<const uint4*>(from) + lane);
  } while (__any_sync(0xffffffffu, unwritten(bits)));
  widen(bits, x);
  if (weight) {
    float squares = 0;
#pragma unroll
    for (float v : x) squares = fmaf(v, v, squares);
    const float scale = rsqrtf(warp_sum(squares) / Qwen3NextKind::kHeadDim + a.shape.eps);
    const float more = a.shape.one_plus ? 1.0f : 0.0f;
#pragma unroll
    for (int e = 0; e < 8; ++e) x[e] *= scale * (more + w[e]);
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) {
    const float partner = __shfl_xor_sync(0xffffffffu, x[e], kHalf / 8);
    if (rotated) x[e] = x[e] * cosine[e] + (lane * 8 < kHalf ? -partner : partner) * sine[e];
  }
  to[lane] = narrow(x);
}

// Whether the new token's page is in a block's run.
template <typename Kind>
__device__ __forceinline__ bool has_newest(const Unit& u) {
  const int newest = (u.context - 1) / Kind::kPageTokens;
  return u.token >= 0 && newest < u.end && newest >= u.first;
}

// The new token's key, as bring_head, and value.
template <typename Kind>
__device__ __forceinline__ void bring_key_and_value(const Args& a, const FusedLayer& layer,
                                                    uint32_t turn, const Unit& u,
                                                    PieceShared<Kind>& shared) {
  const int lane = threadIdx.x % 32;
  const bf16* key = a.in.of(turn) + static_cast<int64_t>(u.token) * a.in_row +
                    (a.shape.heads + u.kv_head) * Kind::kHeadDim;
  bring_head(a, key, layer.k_norm, a.batch.cos_sin + u.token * Kind::kRotary, shared.key);
  const uint4* value = reinterpret_cast<const uint4*>(key + a.shape.kv_heads * Kind::kHeadDim);
  uint4 mine{};
  do {
    if (lane < PieceShared<Kind>::kChunks) mine = peek16(value + lane);
  } while (__any_sync(0xffffffffu, unwritten(mine)));
  if (lane < PieceShared<Kind>::kChunks) shared.value[lane] = mine;
}

// Both to the cache.
template <typename Kind>
__device__ __forceinline__ void keep_token(const Args& a, const FusedLayer& layer, const Unit& u,
                                           const PieceShared<Kind>& shared) {
  const int lane = threadIdx.x % 32, slot = a.batch.kv_slots[u.token];
  if (slot < 0 || lane >= PieceShared<Kind>::kChunks) return;
  const KvLayout& layout = a.batch.cache.layout;
  bf16* cached =
      static_cast<bf16*>(a.batch.cache.arena) + slot / layout.block_tokens * layout.block_stride() +
      layout.k_offset(static_cast<int>(layer.cache_layer), u.kv_head, slot % layout.block_tokens);
  reinterpret_cast<uint4*>(cached)[lane] = shared.key[lane];
  reinterpret_cast<uint4*>(cached + layout.v_offset())[lane] = shared.value[lane];
}

// An 8x8 matrix of b16 transposed: a thread has row lane / 4, columns 2 (lane % 4) and the next.
__device__ __forceinline__ uint32_t transpose(uint32_t pair) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}
// c += a b, as skinny::mma, over 8 values instead of 16.
__device__ __forceinline__ void mma_half(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}
// A 16-byte chunk `c` of a token's keys or values in a page, as the copy unit swizzles rows of 128
// bytes.
template <typename Kind>
__device__ __forceinline__ char* page_chunk(char* stage, int token, int c, bool value) {
  char* const row =
      stage + (value ? kPageBytes / 2 : 0) + c / 8 * (Kind::kPageTokens * 128) + token * 128;
  return row + ((c % 8) ^ (token % 8)) * 16;
}

// Of one warp, for heads 2 (lane % 4) and the next: outputs of dims 16 i + lane / 4 ([0, 1]) and 8
// further ([2, 3]); sums of the scores of tokens lane / 4 and 8 further alone.
template <int kHeadDim>
struct Piece {
  float out[kHeadDim / 16][4] = {};
  float most[2] = {-INFINITY, -INFINITY}, sum[2] = {};
};

// Folds the page in a stage into the piece. `valid`: tokens of it that count; q(j): this lane's 8
// values of the query in every 32.
template <typename Kind, typename Query>
__device__ __forceinline__ void attend_page(const Lane& me, char* stage, int valid, const Query& q,
                                            float scale_log2, Piece<Kind::kHeadDim>& piece) {
  constexpr int kHeadDim = Kind::kHeadDim, kTiles = Kind::kPageTokens / 8;
  const int lane = me.lane, group = me.group, quad = me.quad;
  float score[4] = {};  // of tokens `group` and 8 further
#pragma unroll
  for (int j = 0; j < kHeadDim / 32; ++j) {
    uint4 k[2] = {};
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile)
      k[tile] = *reinterpret_cast<const uint4*>(
          page_chunk<Kind>(stage, tile * 8 + group, j * 4 + quad, false));
    const uint4 of_q = q(j);
    skinny::mma(score, k[0].x, k[1].x, k[0].y, k[1].y, of_q.x, of_q.y);
    skinny::mma(score, k[0].z, k[1].z, k[0].w, k[1].w, of_q.z, of_q.w);
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
  if constexpr (kTiles == 1) {  // matrices: four chunks of 8 dims
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; i += 2) {
      uint32_t v[4];
      decode::load_transposed(page_chunk<Kind>(stage, lane % 8, 2 * i + lane / 8, true), v);
      mma_half(piece.out[i], v[0], v[1], p[0]);
      mma_half(piece.out[i + 1], v[2], v[3], p[0]);
    }
  } else {
    // Matrices: tokens 0-7 of both chunks of 16 dims, then tokens 8-15 of them.
    const int token = lane % 8 + lane / 16 * 8, odd = lane / 8 % 2;
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
      uint32_t v[4];
      decode::load_transposed(page_chunk<Kind>(stage, token, 2 * i + odd, true), v);
      skinny::mma(piece.out[i], v[0], v[1], v[2], v[3], p[0], p[1]);
    }
  }
}

// This block's piece. The warps leave their results where their last pages were.
template <typename Kind>
__device__ inline void attend(const Args& a, const FusedLayer& layer, uint32_t turn, const Unit& u,
                              Stream& stream, PieceShared<Kind>& shared) {
  constexpr int kHeadDim = Kind::kHeadDim, kPageTokens = Kind::kPageTokens, kChunks = kHeadDim / 8;
  if (u.token < 0) return;
  // The warps' last pages stay until all have been joined.
  constexpr int kStride = kWarps / kStagePages;  // from a warp's stage to its next
  static_assert(kStages >= kStride);
  const Lane me;
  const int warp = me.warp, lane = me.lane, group = me.group, quad = me.quad;
  const int rows = a.rows;
  const bf16* row = a.in.of(turn) + static_cast<int64_t>(u.token) * a.in_row;
  const int newest = (u.context - 1) / kPageTokens;  // the page of the new token
  static_assert(kMaxRows <= kWarps);
  if (warp < rows)
    bring_head(a, row + (u.kv_head * rows + warp) * kHeadDim, layer.q_norm,
               a.batch.cos_sin + u.token * Kind::kRotary, shared.queries[warp]);
  if (has_newest<Kind>(u))
    sync_with_finisher();  // which has brought its key and value
  else
    sync_consumers();
  const float scale_log2 = a.shape.scale * 1.4426950408889634f;
  Piece<kHeadDim> piece;
  int page = u.first + warp;
  const bool has_page = page < u.end;
  if (has_page) {
    // In registers, where they have room.
    constexpr bool kHeld = kHeadDim <= 128;
    const uint4* const from = &shared.queries[min(group, rows - 1)][quad];
    uint4 held[kHeld ? kHeadDim / 32 : 1];
#pragma unroll
    for (int j = 0; kHeld && j < kHeadDim / 32; ++j) held[j] = from[j * 4];
    const auto q = [&](int j) { return kHeld ? held[j] : from[j * 4]; };
    stream.pass(warp / kStagePages);
#pragma unroll 1
    while (true) {
      char* const stage = stream.stage() + warp % kStagePages * kPageBytes;
      stream.wait();
      if (page == newest) {
        const int token = (u.context - 1) % kPageTokens;
        if (lane < kChunks) {
          *reinterpret_cast<uint4*>(page_chunk<Kind>(stage, token, lane, false)) = shared.key[lane];
          *reinterpret_cast<uint4*>(page_chunk<Kind>(stage, token, lane, true)) =
              shared.value[lane];
        }
        // Weighted by 0, what a block's last owner left behind it could still be NaN.
        for (int i = (token + 1) * kChunks + lane; i < kPageTokens * kChunks; i += 32)
          *reinterpret_cast<uint4*>(page_chunk<Kind>(stage, i / kChunks, i % kChunks, true)) = {};
        fence_async_shared();
        __syncwarp();
      }
      attend_page<Kind>(me, stage, u.context - page * kPageTokens, q, scale_log2, piece);
      if (page + kWarps >= u.end) break;
      stream.release_page(me);
      stream.pass(kStride);
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
    char* const place = stream.stage() + warp % kStagePages * kPageBytes;
    float* const room = reinterpret_cast<float*>(place);
#pragma unroll
    for (int i = 0; i < kHeadDim / 16; ++i) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int r = 2 * quad + e % 2, d = (16 * i + group + e / 2 * 8) ^ (quad * 8);
        room[r * kHeadDim + d] = piece.out[i][e];
      }
    }
    if (lane == 0) shared.results[warp] = room;
  }
  sync_consumers();
  if (warp < rows) {
    const int r = warp, used = min(kWarps, u.end - u.first);
    const bool has = lane < used;  // a lane looks at a warp's results
    const float most_of = has ? shared.most[lane][r] : -INFINITY, most = warp_max(most_of);
    const float weight_of = has ? exp2f(most_of - most) : 0.0f;
    const float sum = warp_sum(has ? weight_of * shared.sum[lane][r] : 0.0f);
    constexpr int kEach = kHeadDim / 128;
    float4 v[kEach] = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float weight = __shfl_sync(0xffffffffu, weight_of, w);
      if (w >= used) continue;
      const float* out = shared.results[w] + r * kHeadDim;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const float4 from =
            *reinterpret_cast<const float4*>(out + i * 128 + ((lane * 4) ^ (r / 2 * 8)));
        v[i].x = fmaf(weight, from.x, v[i].x);
        v[i].y = fmaf(weight, from.y, v[i].y);
        v[i].z = fmaf(weight, from.z, v[i].z);
        v[i].w = fmaf(weight, from.w, v[i].w);
      }
    }
    const int64_t at = static_cast<int64_t>(blockIdx.x) * kMaxRows + r;
    const auto bits = [](float f) { return __float_as_uint(f); };
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      publish16(a.partial, turn, at * kHeadDim + i * 128 + lane * 4,
                {bits(v[i].x), bits(v[i].y), bits(v[i].z), bits(v[i].w)});
    if (lane < 2) publish(a.scores, turn, at * 2 + lane, bits(lane == 0 ? most : sum));
  }
  sync_consumers();
  // A stage without a page for this warp is nonetheless its to pass.
  const int stages = (u.end - u.first + kStagePages - 1) / kStagePages;
  int done = warp / kStagePages;  // stages in front of this one
  if (has_page) {
    fence_async_shared();  // room was written here, which the copy unit will write next
    stream.release_page(me);
    const int next = (page - u.first) / kStagePages + kStride;
    stream.pass(min(next, stages) - (next - kStride));
    done = next;
  } else {
    stream.pass(min(done, stages));
  }
  if (done < stages) {
    stream.wait();
    stream.release_page(me);
    stream.pass(stages - done);
  }
}

}  // namespace vamp::cuda::fused
