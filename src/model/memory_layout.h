// Where everything lies in device memory: pure geometry, no device. One MemoryLayout is made at
// start from the model and the budget; `core` reads block counts from it, `memory` reads addresses.
//
// Physical memory of a rank is: dense weights + reserve (never move), the base KV pool (never
// moves), and `physical_groups()` frames of `group_bytes()` each, which the boundary moves:
//
//   resident experts | staging banks | KV pool slots          (frames, summing to physical_groups)
//
// The boundary is one integer n, the number of expert groups given up, in the order that
// OffloadOrder lists. With `missing` groups for which there never was memory:
//
//   frames in the banks   bank_groups(n)
//   frames in the pool    pool_slots(n) = n - missing - bank_groups(n)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/units.h"
#include "model/model_config.h"

namespace vamp {

using BlockId = int32_t;      // a KV block on the device: its index in the arena
using HostBlockId = int32_t;  // a KV block in the host tier
using PoolSlot = int32_t;     // a frame's place behind the base pool in the KV arena

// An expert group: a run of consecutive expert shards of one MoE layer that fills whole pages.
struct GroupId {
  int moe_layer = 0;  // 0 ... moe_layers-1
  int group = 0;      // 0 ... groups_per_layer-1; experts [group * shards_per_group, ...)
  bool operator==(const GroupId&) const = default;
};

// Which group is given up k-th. Layers stay within one group of each other in the paper's order
// (round-robin, each layer from its tail inward); a priced order may differ.
struct OffloadOrder {
  uint64_t version = 0;
  std::vector<GroupId> groups;
};

struct MemoryLayoutOptions {
  size_t page_bytes = 2 * kMiB;  // a power of two
  int tensor_parallel = 1;
  size_t device_bytes = 0;   // all that this rank may use (budget, or HBM x utilization)
  size_t reserve_bytes = 0;  // activations, workspaces, runtime
  int block_tokens = 16;
  DType kv_dtype = DType::kBf16;
  double max_offload_percent = 0;  // VAMP-r: of a layer's experts, 0 ... 100
  int increment_groups = 4;        // the boundary moves by this many groups
  bool round_to_increment =
      false;                  // the paper: experts a layer rounded down to a multiple of 4 shards
  size_t min_pool_bytes = 0;  // what the KV pool must at least hold; 0: one block
};

// How one rank's experts lie in memory. Each rank holds every expert, cut along the intermediate
// size. Whole experts follow each other, each its gate and up rows and then its down matrix, so
// that a group is one run of bytes: remapping costs by the handle.
struct ExpertGeometry {
  int moe_layers = 0;
  int experts = 0;                 // per layer
  size_t gate_up_shard_bytes = 0;  // an expert's [2I/tp, H], padding included
  size_t down_shard_bytes = 0;     // an expert's [H, I/tp], padding included; lies behind it
  size_t gate_up_data_bytes = 0;   // the same without the padding
  size_t down_data_bytes = 0;
  int shards_per_group = 0;
  int groups_per_layer = 0;  // ceil(experts / shards_per_group): the last may lack some shards
  // A whole expert, and the stride of both matrices from one expert to the next.
  size_t shard_bytes() const { return gate_up_shard_bytes + down_shard_bytes; }
  size_t group_bytes() const { return shard_bytes() * shards_per_group; }
  int total_groups() const { return moe_layers * groups_per_layer; }
  size_t expert_bytes() const { return group_bytes() * total_groups(); }
  // Groups of a layer that VAMP-r may give up: r percent of the experts, in whole groups.
  int groups_for_percent(double percent, bool round_to_increment) const;
};

// A group is the smallest run of shards that fills whole pages. Where that would be more than an
// eighth of a layer (gpt-oss: all 128), shards are padded instead: the smallest power of two of
// shards that wastes at most 1/16, else the one that wastes least. Both matrices of an expert begin
// at multiples of 256 bytes.
ExpertGeometry make_expert_geometry(const ModelConfig& model, int tensor_parallel,
                                    size_t page_bytes);

struct MemoryLayout : ExpertGeometry {
  int tensor_parallel = 1;
  size_t page_bytes = 0;
  int max_groups_out_per_layer = 0;      // from max_offload_percent; also E_buffer in groups
  bool first_moe_layer_resident = true;  // unless the weights don't fit otherwise

  size_t dense_weight_bytes = 0;  // embeddings, attention, norms, routers, shared experts, head
  size_t reserve_bytes = 0;

  // KV.
  int block_tokens = 0;
  size_t kv_bytes_per_token = 0;     // full-attention layers, K and V, this rank
  size_t block_bytes = 0;            // block_tokens * kv_bytes_per_token
  size_t recurrent_state_bytes = 0;  // of one sequence on this rank (Gated DeltaNet), else 0
  size_t base_pool_bytes = 0;        // whole pages, mapped for good

  // The boundary.
  OffloadOrder order;      // every group that may be given up, in order; set by set_order()
  int missing_groups = 0;  // groups without memory: the weights exceed the budget
  int min_groups_out = 0;  // least n with pool_slots(n) >= 0 (and min_pool_bytes in the pool)
  int max_groups_out() const { return static_cast<int>(order.groups.size()); }
  int increment_groups = 4;
  int physical_groups() const { return total_groups() - missing_groups; }

  // Takes another order of the same groups. Each layer's groups must go from its tail inward.
  void set_order(OffloadOrder new_order);

  // Groups of `moe_layer` given up at boundary n (0 ... max_groups_out()).
  int groups_out(int n, int moe_layer) const;
  // Frames held by the two banks at boundary n. Bank `moe_layer % 2`, place = how many of that
  // layer's groups were given up before: a place is backed from the first n on at which some layer
  // uses it.
  int bank_groups(int n) const;
  int pool_slots(int n) const { return n - missing_groups - bank_groups(n); }

  // KV blocks. The arena is base pool | slot 0 | slot 1 | ... without gaps; a block may straddle.
  int base_blocks() const { return static_cast<int>(base_pool_bytes / block_bytes); }
  int max_pool_slots() const { return pool_slots(max_groups_out()); }
  int max_blocks() const;  // with every pool slot mapped
  // Blocks wholly inside mapped memory that touch `slot`, given which slots are mapped (the base
  // pool always is). On mapping a slot these appear; on unmapping it these go.
  std::vector<BlockId> blocks_touching(PoolSlot slot, const std::vector<bool>& mapped) const;

 private:
  std::vector<int> bank_groups_;               // by n
  std::vector<std::vector<int>> given_up_at_;  // by MoE layer: the n at which its k-th group goes
};

// KV bytes of one token on one rank: K and V of the full-attention layers. A rank holds at least
// one KV head.
size_t kv_bytes_per_token(const ModelConfig& model, int tensor_parallel, DType kv_dtype);

// Bytes of one sequence's Gated DeltaNet state on one rank: per linear layer the recurrence [value
// heads, key dim, value dim] in float32 and the convolution's last width - 1 inputs in the model's
// dtype.
size_t recurrent_state_bytes(const ModelConfig& model, int tensor_parallel);

// The paper's order: round-robin over the layers (without the first if it stays), each from its
// tail.
OffloadOrder round_robin_order(const ExpertGeometry& experts, int groups_out_per_layer,
                               bool first_moe_layer_resident);

// Throws Error with the numbers when even giving up every group that may go leaves no room.
MemoryLayout make_memory_layout(const ModelConfig& model, const MemoryLayoutOptions& options);

}  // namespace vamp
