// Attention of one new token a sequence: each context is cut into the same number of pieces,
// whatever its length, so no plan on the host is needed and a captured graph stays valid as
// contexts grow. How many pieces depends on the number of sequences, and the order of sums with it.
//
// What lies in the cache from before the step is requested before the kernel in front has ended
// (launch.cuh). So the batch's arrays, and every cached token but the one that this step adds to
// each sequence, must have been written before the first of a run of overlapped kernels.
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
  const int32_t* context = nullptr;      // device [sequences]: tokens, the new one included; 0:
                                         // none, its output is zeros (padding)
  const int32_t* block_start = nullptr;  // device [sequences + 1]
  const int32_t* block_ids = nullptr;    // device
};

// q [sequences, num_heads, head_dim] bf16 with q_stride elements between rows; out likewise, dense.
// The new token's k and v lie in the cache. Blocks of the cache hold a multiple of 16 tokens.
// Asynchronous, capturable.
void decode_attention(const __nv_bfloat16* q, int64_t q_stride, const DecodeBatch& batch,
                      const DecodeShape& shape, const KvCache& cache, int layer, float scale,
                      __nv_bfloat16* out, cudaStream_t stream);

}  // namespace vamp::cuda
