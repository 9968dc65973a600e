// What happens to q, k and v between their projection and attention, in one pass: head norms,
// rotation, and the write into the paged cache.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include "kernels/kv_layout.h"
#include "kernels/ops.h"

namespace vamp::cuda {

struct QkvShape {
  int num_heads = 0, kv_heads = 0;
  int head_dim = 0;    // 64, 128 or 256
  int rotary_dim = 0;  // 64, 128 or 256, at most head_dim
  int row_stride = 0;  // elements between tokens of qkv; 0: its heads lie dense

  int64_t stride() const { return row_stride ? row_stride : (num_heads + 2 * kv_heads) * head_dim; }
};

// qkv [tokens, num_heads + 2 kv_heads, head_dim] bf16: q and k are normed (when their norm has
// data) and rotated in place; k and v are written into the cache of `layer`.
//   cos_sin [tokens, 2, rotary_dim / 2] f32; kv_slots [tokens]: block id * block_tokens + token in
//   the block, negative: the token's k and v are not written (padding).
// Asynchronous, capturable.
void qk_norm_rope_write_kv(__nv_bfloat16* qkv, int tokens, const QkvShape& shape,
                           const NormWeight& q_norm, const NormWeight& k_norm, const float* cos_sin,
                           const KvCache& cache, int layer, const int32_t* kv_slots,
                           cudaStream_t stream);

}  // namespace vamp::cuda
