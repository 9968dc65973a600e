// The part of Attention for long queries: FlashInfer's FA3 templates (wgmma). They give a whole
// tile of 128 rows to one sequence and head, so they are for prefill chunks, not for decode.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/attention.h"
#include "kernels/kv_layout.h"

namespace vamp::cuda {

// Device arrays that a plan filled: blocks of the grid and their tiles of queries.
struct LongAttentionPlan {
  const int32_t *tile = nullptr, *query_start = nullptr, *block_start = nullptr;  // [work items]
  const int32_t *query_length = nullptr, *context = nullptr;
  const int32_t *head = nullptr, *sequence = nullptr;
  const int32_t* work_start = nullptr;  // [multiprocessors + 1]
};

struct LongAttentionArgs {
  LongAttentionPlan plan;
  const __nv_bfloat16* q = nullptr;
  int64_t q_stride = 0;
  int tokens = 0;  // rows of q and out
  int num_heads = 0;
  KvCache cache;
  int layer = 0;
  const int32_t* block_ids = nullptr;
  DenseKv dense;  // read by dense_attention_* instead of the cache
  float scale = 1.0f;
  __nv_bfloat16* out = nullptr;  // [tokens, num_heads, head_dim]
};

// One translation unit each: the templates take a minute to compile.
cudaError_t long_attention_128(const LongAttentionArgs& args, cudaStream_t stream);
cudaError_t long_attention_256(const LongAttentionArgs& args, cudaStream_t stream);
// Of prompts that begin with this step: their keys and values lie in order, and the copy unit can
// bring them. The plan's block_start then counts tokens.
cudaError_t dense_attention_128(const LongAttentionArgs& args, cudaStream_t stream);
cudaError_t dense_attention_256(const LongAttentionArgs& args, cudaStream_t stream);

}  // namespace vamp::cuda
