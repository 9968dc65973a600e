// Attention of one new token a sequence, for batches too small to keep the memory busy with whole
// contexts: each context is cut into the same number of pieces, whatever its length, so no plan on
// the host is needed and a captured graph stays valid as contexts grow.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/kv_layout.h"

namespace vamp::cuda {

struct DecodeShape {
  int num_heads = 0, kv_heads = 0;  // at most 16 query heads a KV head
  int head_dim = 0;                 // 64, 128 or 256
};

struct DecodeBatch {
  int sequences = 0;
  const int32_t* context = nullptr;  // device [sequences]: tokens, the new one included; 0: none
  const int32_t* block_start = nullptr;  // device [sequences + 1]
  const int32_t* block_ids = nullptr;    // device
};

// Pieces that a context is cut into (one thread-block cluster); the order of sums depends on it and
// on the context's length.
int decode_attention_pieces(int sequences, const DecodeShape& shape);

// q [sequences, num_heads, head_dim] bf16 with q_stride elements between rows; out likewise, dense.
// Blocks of the cache hold a multiple of 16 tokens. Asynchronous, capturable.
void decode_attention(const __nv_bfloat16* q, int64_t q_stride, const DecodeBatch& batch,
                      const DecodeShape& shape, const KvCache& cache, int layer, float scale,
                      __nv_bfloat16* out, cudaStream_t stream);

}  // namespace vamp::cuda
