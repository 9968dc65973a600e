// How a KV block lies in the arena, in one place for every backend.
//
// The arena is block-major: block b starts at b * block_bytes() and holds all layers, so that
// growing the arena only publishes more ids and a block is one contiguous copy to the host. Inside
// a block:
//
//   [layer][K, V][kv_head][token][head_dim]
//
// so one head's 16 tokens are one contiguous matrix, whose rows the attention kernels load as they
// are.
#pragma once

#include <cstddef>
#include <cstdint>

#include "model/model_config.h"

namespace vamp {

// Strides are in elements.
struct KvLayout {
  int layers = 0;  // that have full attention
  int kv_heads = 0;
  int head_dim = 0;
  int block_tokens = 0;
  DType dtype = DType::kBf16;  // kBf16 or kF32

  constexpr int64_t token_stride() const { return head_dim; }
  constexpr int64_t head_stride() const { return int64_t{block_tokens} * head_dim; }
  constexpr int64_t v_offset() const {
    return kv_heads * head_stride();
  }  // from a layer's K to its V
  constexpr int64_t layer_stride() const { return 2 * v_offset(); }
  constexpr int64_t block_stride() const { return layers * layer_stride(); }
  size_t block_bytes() const { return static_cast<size_t>(block_stride()) * dtype_bytes(dtype); }
  // From a block's start to K of (layer, head, token in the block); V is v_offset() further.
  constexpr int64_t k_offset(int layer, int head, int token) const {
    return layer * layer_stride() + head * head_stride() + token * token_stride();
  }
};

struct KvCache {
  void* arena = nullptr;  // where block 0 is (or would be: holes are allowed)
  KvLayout layout;
};

}  // namespace vamp
