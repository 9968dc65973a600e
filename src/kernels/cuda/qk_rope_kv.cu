#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/launch.cuh"
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
    qk_rope_kv_kernel(__nv_bfloat16* qkv, QkvShape shape, NormWeight q_norm, NormWeight k_norm,
                      const float* __restrict__ cos_sin, __nv_bfloat16* arena, KvLayout layout,
                      int layer, const int32_t* __restrict__ kv_slots) {
  constexpr int kPairs = kHeadDim / 64;
  allow_next();
  wait_for_previous();
  const int token = blockIdx.x, lane = threadIdx.x % 32;
  const int head = blockIdx.y * kHeadsPerBlock + threadIdx.x / 32;
  const int heads = shape.num_heads + 2 * shape.kv_heads;
  if (head >= heads) return;
  const bool is_q = head < shape.num_heads, is_v = head >= shape.num_heads + shape.kv_heads;
  __nv_bfloat16* row = qkv + (static_cast<size_t>(token) * heads + head) * kHeadDim;
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
  __nv_bfloat16* out = row;
  if (!is_q) {
    const int slot = kv_slots[token];
    if (slot < 0) return;
    const int kv_head = (head - shape.num_heads) % shape.kv_heads;
    out = arena + slot / layout.block_tokens * layout.block_stride() +
          (is_v ? layout.v_offset() : 0) +
          layout.k_offset(layer, kv_head, slot % layout.block_tokens);
  }
#pragma unroll
  for (int j = 0; j < kPairs; ++j)
    *reinterpret_cast<__nv_bfloat162*>(out + 64 * j + 2 * lane) =
        __floats2bfloat162_rn(x[j][0], x[j][1]);
}

}  // namespace

void qk_norm_rope_write_kv(__nv_bfloat16* qkv, int tokens, const QkvShape& shape,
                           const NormWeight& q_norm, const NormWeight& k_norm, const float* cos_sin,
                           const KvCache& cache, int layer, const int32_t* kv_slots,
                           cudaStream_t stream) {
  const auto supported = [](int dim) { return dim == 64 || dim == 128 || dim == 256; };
  VAMP_CHECK(supported(shape.head_dim) && supported(shape.rotary_dim) &&
                 shape.rotary_dim <= shape.head_dim && cache.layout.dtype == DType::kBf16,
             "qk_norm_rope_write_kv: head_dim {}, rotary_dim {}", shape.head_dim, shape.rotary_dim);
  if (tokens == 0) return;
  const int heads = shape.num_heads + 2 * shape.kv_heads;
  const dim3 grid(tokens, (heads + kHeadsPerBlock - 1) / kHeadsPerBlock);
  auto* arena = static_cast<__nv_bfloat16*>(cache.arena);
  const auto kernel = shape.head_dim == 64    ? qk_rope_kv_kernel<64>
                      : shape.head_dim == 128 ? qk_rope_kv_kernel<128>
                                              : qk_rope_kv_kernel<256>;
  launch_overlapped("qk_norm_rope_write_kv", kernel, grid, kHeadsPerBlock * 32, 0, stream, qkv,
                    shape, q_norm, k_norm, cos_sin, arena, cache.layout, layer, kv_slots);
}

}  // namespace vamp::cuda
