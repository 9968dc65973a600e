#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack_bf16.cuh"
#include "kernels/cuda/qk_rope_kv.h"
#include "kernels/cuda/vec.cuh"

namespace vamp::cuda {
namespace {

constexpr int kHeadsPerBlock = 8;

// One warp a head. Lane l holds elements 64 j + 2 l and the next of it, so that a rotation's
// partner, rotary_dim / 2 further, is in the same lane (halves of 64 and more) or in lane l ^ 16
// (halves of 32).
template <int kHeadDim>
__global__ void __launch_bounds__(kHeadsPerBlock * 32)
    qk_rope_kv_kernel(__nv_bfloat16* qkv, int64_t stride, QkvShape shape, NormWeight q_norm,
                      NormWeight k_norm, const float* __restrict__ cos_sin, __nv_bfloat16* arena,
                      KvLayout layout, int layer, const int32_t* __restrict__ kv_slots) {
  constexpr int kPairs = kHeadDim / 64;
  allow_next();
  wait_for_previous();
  const int token = blockIdx.x, lane = threadIdx.x % 32;
  const int head = blockIdx.y * kHeadsPerBlock + threadIdx.x / 32;
  const int heads = shape.num_heads + 2 * shape.kv_heads;
  if (head >= heads) return;
  const bool is_q = head < shape.num_heads, is_v = head >= shape.num_heads + shape.kv_heads;
  __nv_bfloat16* row = qkv + token * stride + head * kHeadDim;
  float x[kPairs][2];
#pragma unroll
  for (int j = 0; j < kPairs; ++j) {
    const uint32_t pair = *reinterpret_cast<const uint32_t*>(row + 64 * j + 2 * lane);
    x[j][0] = bf16_low(pair);
    x[j][1] = bf16_high(pair);
  }
  if (!is_v) {
    const NormWeight norm = is_q ? q_norm : k_norm;
    if (norm.data) {
      float squares = 0;
#pragma unroll
      for (int j = 0; j < kPairs; ++j) squares += x[j][0] * x[j][0] + x[j][1] * x[j][1];
      const float scale = rsqrtf(warp_sum(squares) / kHeadDim + norm.eps);
#pragma unroll
      for (int j = 0; j < kPairs; ++j) {
        const float2 w = *reinterpret_cast<const float2*>(norm.data + 64 * j + 2 * lane);
        x[j][0] *= scale * (norm.one_plus ? 1.0f + w.x : w.x);
        x[j][1] *= scale * (norm.one_plus ? 1.0f + w.y : w.y);
      }
    }
    const int half = shape.rotary_dim / 2;
    const float* cosines = cos_sin + static_cast<size_t>(token) * shape.rotary_dim;
    const float* sines = cosines + half;
    float rotated[kPairs][2];
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int d = 64 * j + 2 * lane + e;
        float partner;
        if (half == 32) {
          partner = __shfl_xor_sync(0xffffffffu, x[j][e], 16);
        } else {
          const int step = half / 64;  // 1 or 2 registers away
          partner = x[j][e];
#pragma unroll
          for (int other = 0; other < kPairs; ++other)
            if (other == (j < step ? j + step : j - step)) partner = x[other][e];
        }
        const bool first = d < half;
        const int angle = first ? d : d - half;
        rotated[j][e] = d < shape.rotary_dim
                            ? x[j][e] * cosines[angle] + (first ? -partner : partner) * sines[angle]
                            : x[j][e];
      }
    }
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      x[j][0] = rotated[j][0];
      x[j][1] = rotated[j][1];
    }
  }
  const auto write = [&](__nv_bfloat16* out) {
#pragma unroll
    for (int j = 0; j < kPairs; ++j)
      *reinterpret_cast<__nv_bfloat162*>(out + 64 * j + 2 * lane) =
          __floats2bfloat162_rn(x[j][0], x[j][1]);
  };
  if (!is_v) write(row);
  const int slot = kv_slots[token];
  if (is_q || slot < 0) return;
  const int kv_head = (head - shape.num_heads) % shape.kv_heads;
  write(arena + slot / layout.block_tokens * layout.block_stride() +
        (is_v ? layout.v_offset() : 0) +
        layout.k_offset(layer, kv_head, slot % layout.block_tokens));
}

// For many tokens: a lane holds eight elements of a head, so that a warp takes 256 / kHeadDim
// heads, of four tokens whose loads are under way together. A rotation's partner is rotary_dim / 16
// lanes away.
constexpr int kWideTokens = 4, kWideThreads = 256;
constexpr int kWideFrom = 256;  // tokens from which on it is used

struct Eight {
  float x[8];
};
__device__ Eight widen(const uint4& bits) {
  return {{bf16_low(bits.x), bf16_high(bits.x), bf16_low(bits.y), bf16_high(bits.y),
           bf16_low(bits.z), bf16_high(bits.z), bf16_low(bits.w), bf16_high(bits.w)}};
}
__device__ Eight load_floats(const float* p) {
  const float4 a = reinterpret_cast<const float4*>(p)[0], b = reinterpret_cast<const float4*>(p)[1];
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}

template <int kHeadDim>
__global__ void __launch_bounds__(kWideThreads)
    qk_rope_kv_wide_kernel(__nv_bfloat16* qkv, int64_t stride, int tokens, QkvShape shape,
                           NormWeight q_norm, NormWeight k_norm, const float* __restrict__ cos_sin,
                           __nv_bfloat16* arena, KvLayout layout, int layer,
                           const int32_t* __restrict__ kv_slots) {
  constexpr int kLanes = kHeadDim / 8;  // of a head
  allow_next();
  wait_for_previous();
  const int heads = shape.num_heads + 2 * shape.kv_heads;
  const int head = blockIdx.y * (kWideThreads / kLanes) + threadIdx.x / kLanes;
  const int lane = threadIdx.x % kLanes, d = lane * 8;
  const bool active = head < heads;  // the others take part in the shuffles
  const bool is_q = head < shape.num_heads, is_v = head >= shape.num_heads + shape.kv_heads;
  const int first = blockIdx.x * kWideTokens, half = shape.rotary_dim / 2;
  uint4 bits[kWideTokens] = {};
#pragma unroll
  for (int i = 0; i < kWideTokens; ++i) {
    if (active && first + i < tokens)
      bits[i] = *reinterpret_cast<const uint4*>(qkv + (first + i) * stride + head * kHeadDim + d);
  }
  const NormWeight norm = is_q ? q_norm : k_norm;
  Eight weight{};
  if (norm.data) weight = load_floats(norm.data + d);
#pragma unroll
  for (int i = 0; i < kWideTokens; ++i) {
    const int token = min(first + i, tokens - 1);
    Eight v = widen(bits[i]);
    float squares = 0;
#pragma unroll
    for (int j = 0; j < 8; ++j) squares += v.x[j] * v.x[j];
#pragma unroll
    for (int step = kLanes / 2; step > 0; step >>= 1)
      squares += __shfl_xor_sync(0xffffffffu, squares, step);
    if (norm.data && !is_v) {
      const float scale = rsqrtf(squares / kHeadDim + norm.eps);
#pragma unroll
      for (int j = 0; j < 8; ++j)
        v.x[j] *= scale * (norm.one_plus ? 1.0f + weight.x[j] : weight.x[j]);
    }
    Eight partner;
#pragma unroll
    for (int j = 0; j < 8; ++j) partner.x[j] = __shfl_xor_sync(0xffffffffu, v.x[j], half / 8);
    if (!is_v && d < shape.rotary_dim) {
      const float* angles = cos_sin + static_cast<size_t>(token) * shape.rotary_dim + d % half;
      const Eight cosine = load_floats(angles), sine = load_floats(angles + half);
      const float sign = d < half ? -1.0f : 1.0f;
#pragma unroll
      for (int j = 0; j < 8; ++j) v.x[j] = v.x[j] * cosine.x[j] + sign * partner.x[j] * sine.x[j];
    }
    if (!active || first + i >= tokens) continue;
    const uint4 done = make_uint4(pack_bf16(v.x[0], v.x[1]), pack_bf16(v.x[2], v.x[3]),
                                  pack_bf16(v.x[4], v.x[5]), pack_bf16(v.x[6], v.x[7]));
    if (!is_v) {
      __nv_bfloat16* row = qkv + token * stride + head * kHeadDim;
      *reinterpret_cast<uint4*>(row + d) = done;
    }
    const int slot = kv_slots[token];
    if (is_q || slot < 0) continue;
    const int kv_head = (head - shape.num_heads) % shape.kv_heads;
    __nv_bfloat16* cached = arena + slot / layout.block_tokens * layout.block_stride() +
                            (is_v ? layout.v_offset() : 0) +
                            layout.k_offset(layer, kv_head, slot % layout.block_tokens);
    *reinterpret_cast<uint4*>(cached + d) = done;
  }
}

}  // namespace

void qk_norm_rope_write_kv(__nv_bfloat16* qkv, int tokens, const QkvShape& shape,
                           const NormWeight& q_norm, const NormWeight& k_norm, const float* cos_sin,
                           const KvCache& cache, int layer, const int32_t* kv_slots,
                           cudaStream_t stream) {
  const auto supported = [](int dim) { return dim == 64 || dim == 128 || dim == 256; };
  VAMP_CHECK(supported(shape.head_dim) && supported(shape.rotary_dim) &&
                 shape.rotary_dim <= shape.head_dim && shape.stride() % 8 == 0 &&
                 cache.layout.dtype == DType::kBf16,
             "qk_norm_rope_write_kv: head_dim {}, rotary_dim {}, stride {}", shape.head_dim,
             shape.rotary_dim, shape.stride());
  if (tokens == 0) return;
  const int heads = shape.num_heads + 2 * shape.kv_heads;
  if (tokens >= kWideFrom) {
    const int block_heads = kWideThreads / (shape.head_dim / 8);
    const auto wide = shape.head_dim == 64    ? qk_rope_kv_wide_kernel<64>
                      : shape.head_dim == 128 ? qk_rope_kv_wide_kernel<128>
                                              : qk_rope_kv_wide_kernel<256>;
    launch_overlapped(
        "qk_norm_rope_write_kv", wide,
        dim3((tokens + kWideTokens - 1) / kWideTokens, (heads + block_heads - 1) / block_heads),
        kWideThreads, 0, stream, qkv, shape.stride(), tokens, shape, q_norm, k_norm, cos_sin,
        static_cast<__nv_bfloat16*>(cache.arena), cache.layout, layer, kv_slots);
    return;
  }
  const dim3 grid(tokens, (heads + kHeadsPerBlock - 1) / kHeadsPerBlock);
  auto* arena = static_cast<__nv_bfloat16*>(cache.arena);
  const auto kernel = shape.head_dim == 64    ? qk_rope_kv_kernel<64>
                      : shape.head_dim == 128 ? qk_rope_kv_kernel<128>
                                              : qk_rope_kv_kernel<256>;
  launch_overlapped("qk_norm_rope_write_kv", kernel, grid, kHeadsPerBlock * 32, 0, stream, qkv,
                    shape.stride(), shape, q_norm, k_norm, cos_sin, arena, cache.layout, layer,
                    kv_slots);
}

}  // namespace vamp::cuda
