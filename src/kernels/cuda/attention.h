// Attention of a step's tokens over the paged, block-major cache: decode, chunked prefill and both
// in one batch. FlashInfer's FA2 templates, whose host plan cuts long contexts into pieces of equal
// work, and for prefill chunks its FA3 templates, which do 1.4 times as much there, more where keys
// and values need not be gathered from the cache.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kv_layout.h"

namespace vamp::cuda {

struct AttentionShape {
  int num_heads = 0, kv_heads = 0;
  int head_dim = 0;  // 64, 128 or 256
};

// A sequence with at least that many new tokens goes to FA3, and with it all behind it.
inline constexpr int kLongQuery = 192;

// The sequences of a step, best with those of few new tokens first. Host arrays are read by plan(),
// device arrays by run().
struct AttentionBatch {
  int sequences = 0;
  int tokens = 0;
  const int32_t* query_start_host = nullptr;  // [sequences + 1] first token of each
  const int32_t* block_start_host = nullptr;  // [sequences + 1] into block_ids
  const int32_t* query_start = nullptr;       // the same on the device
  const int32_t* block_start = nullptr;
  const int32_t* block_ids = nullptr;          // device
  const int32_t* last_block_tokens = nullptr;  // device [sequences]: tokens in the last block
  const int32_t* context_host = nullptr;  // [sequences] tokens, new ones included; null: FA2 only
  bool dense = false;                     // run() will be given the new tokens' keys and values
};

// The new tokens' keys and values, as the cache has them but in the tokens' order: [tokens,
// kv_heads, head_dim], `stride` elements between tokens.
struct DenseKv {
  const __nv_bfloat16 *k = nullptr, *v = nullptr;
  int64_t stride = 0;
};

// Owns workspaces (of max_workspace_bytes on the device, and pinned staging for two steps in
// flight). plan() is called once a step from one thread, then run() for each layer on the same
// stream; both may be captured apart: a graph of run() calls stays valid for every later plan() of
// the same numbers of sequences and tokens made with graph = true.
class Attention {
 public:
  explicit Attention(const AttentionShape& shape, int block_tokens,
                     size_t workspace_bytes = size_t{256} << 20);
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  // Host work and one small copy to the device. `graph`: sizes fixed by (sequences, tokens).
  void plan(const AttentionBatch& batch, bool graph, cudaStream_t stream);
  // out[t] = attention of token t: q [tokens, num_heads, head_dim] with q_stride elements between
  // tokens, out likewise; bf16. Causal: a sequence's tokens are the last of its context. `dense`,
  // for a plan made with it, is read instead of the cache where a sequence's whole context is new.
  void run(const __nv_bfloat16* q, int64_t q_stride, const KvCache& cache, int layer, float scale,
           __nv_bfloat16* out, cudaStream_t stream, const DenseKv& dense = {});

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vamp::cuda
