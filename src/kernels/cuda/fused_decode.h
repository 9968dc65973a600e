// All decoder layers of a decode step in one launch, for up to 4 sequences.
//
// With few sequences a layer is a chain of some ten small operations, and half of the time goes by
// between them: each kernel has to start, and to wait for its first bytes. Here one block on each
// multiprocessor stays for the whole step. While it waits for what others compute, the weights that
// it will multiply next are already on their way to its shared memory (fused_stream.cuh); and it
// waits for values, not for blocks: what passes between blocks lies in buffers whose unwritten
// words are told from written ones (fused_exchange.cuh), so that there is no barrier in a layer.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "kernels/cuda/decode_attention.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/moe_routing.h"
#include "kernels/gated_delta.h"
#include "kernels/kv_layout.h"

namespace vamp::cuda {

// What the layers of a model have in common. A row of the input product of a layer with attention:
// q of all heads, k and v of all KV heads, and, if `gated`, gates of all heads, whose sigmoids
// attention's output is multiplied by. Of one with Gated DeltaNet: qkvz, then ba (see
// GatedDeltaShape).
struct FusedShape {
  int hidden = 0, heads = 0, kv_heads = 0, head_dim = 0;
  int rotary_dim = 0;     // of a head, the first so many are rotated; 0: all
  bool gated = false;     // attention
  float scale = 0;        // of attention's scores
  float eps = 1e-6f;      // of all norms but Gated DeltaNet's
  bool one_plus = false;  // they multiply by 1 + weight
  GatedDeltaShape delta;  // of the layers that have it instead of attention; value_heads 0: none
  MoeShape moe;
  bool renormalise = true, shared_expert = false;  // see route()
  size_t gate_up_stride = 0, down_stride = 0;      // bytes from an expert to the next
};

// A layer's weights, all on the device: bf16 matrices [outputs, inputs], norms f32. It has Gated
// DeltaNet if it has `delta.conv`, else attention.
struct FusedLayer {
  const __nv_bfloat16* in = nullptr;                        // [a row of the input product, hidden]
  const __nv_bfloat16* out = nullptr;                       // [hidden, heads * head_dim]
  const __nv_bfloat16* router = nullptr;                    // [experts, hidden]
  const void *gate_up = nullptr, *down = nullptr;           // of expert 0
  const float *input_norm = nullptr, *post_norm = nullptr;  // [hidden]
  const float *q_norm = nullptr, *k_norm = nullptr;         // [head_dim], or null: none
  int64_t cache_layer = 0;
  GatedDeltaWeights delta;
  // Memories of sequences, of this layer alone, as in GatedDeltaBatch; both 16-byte aligned,
  // strides multiples of 16 bytes.
  float* states = nullptr;
  int64_t state_stride = 0;
  __nv_bfloat16* conv_states = nullptr;
  int64_t conv_stride = 0;
  uint32_t* expert_counts = nullptr;  // [experts] running totals, or null
  const float* logits = nullptr;      // [tokens, experts]: routes by these instead of the router's
                                      // (for benchmarks), or null
};

// The sequences of a step, each with one new token. Arrays on the device, `cos_sin` (as norms and
// convolutions' weights) 16-byte aligned; `slots` and `starts` wherever the shape has Gated
// DeltaNet.
struct FusedBatch {
  DecodeBatch attention;
  const int32_t* kv_slots = nullptr;  // [sequences] where the token goes in the cache, -1: nowhere
  const float* cos_sin = nullptr;     // [sequences, rotary_dim]
  KvCache cache;
  // [sequences], of layers with Gated DeltaNet: the sequence's memory, none shared, and whether it
  // is empty
  const int32_t *slots = nullptr, *starts = nullptr;
};

class FusedDecode {
 public:
  static constexpr int kMaxTokens = 4;
  // Whether the kernel takes the shape, which is that of a model like Qwen3-30B-A3B or like
  // Qwen3-Next-80B-A3B, and the device has the multiprocessors for it (128 to 256); if not, go op
  // by op.
  static bool takes(const FusedShape& shape);

  FusedDecode(const FusedShape& shape, const std::vector<FusedLayer>& layers);

  // The layers one after the other on residual [sequences, hidden] bf16, from which the first one
  // takes its input's norm. The blocks wait for each other, so all of the device must be theirs at
  // some time; two runs of one FusedDecode must not overlap. A sequence's result is the same bits
  // alone and beside others, up to some 1,000 tokens of context; longer ones are cut into pieces by
  // the number of sequences. Asynchronous, capturable; 0 sequences: nothing happens.
  void run(__nv_bfloat16* residual, const FusedBatch& batch, cudaStream_t stream);

  // How a layer's weights are brought (tensor_map.h).
  struct Maps {
    CUtensorMap in, out, router, gate_up, down;
  };
  struct Layer : FusedLayer {
    uint32_t before;  // layers of its kind in front of it
    __host__ __device__ bool has_delta() const { return delta.conv != nullptr; }
  };

 private:
  FusedShape shape_;
  int blocks_;
  DeviceBuffer<Layer> layers_;
  DeviceBuffer<Maps> maps_;
  DeviceBuffer<uint32_t> sync_, drawn_;
  DeviceBuffer<char> exchange_;
};

}  // namespace vamp::cuda
