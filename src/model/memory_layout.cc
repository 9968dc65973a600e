#include "model/memory_layout.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "base/error.h"
#include "model/checkpoint_tensors.h"

namespace vamp {
namespace {

constexpr int kPaperIncrementShards = 4;
constexpr size_t kMinPage = 512;
constexpr size_t kMaxPage = kGiB;
constexpr size_t kMatrixAlignment = 256;

size_t round_up(size_t value, size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

void check_page(size_t page_bytes) {
  if (!std::has_single_bit(page_bytes) || page_bytes < kMinPage || page_bytes > kMaxPage) {
    throw Error("a page of {} bytes; expected a power of two from {} to {}", page_bytes, kMinPage,
                kMaxPage);
  }
}

void check_options(const MemoryLayoutOptions& options) {
  if (options.block_tokens < 1 || options.block_tokens > 1 << 16) {
    throw Error("KV blocks of {} tokens; expected 1 to {}", options.block_tokens, 1 << 16);
  }
  if (!(options.max_offload_percent >= 0 && options.max_offload_percent <= 100)) {
    throw Error("an offload ratio of {} percent; expected 0 to 100", options.max_offload_percent);
  }
  if (options.increment_groups < 1) {
    throw Error("boundary increments of {} groups; expected at least 1", options.increment_groups);
  }
}

size_t choose_shards_per_group(size_t shard, size_t experts, size_t page) {
  const size_t limit = std::max<size_t>(1, std::bit_floor(experts / 8));
  size_t best = 1;
  double least = std::numeric_limits<double>::infinity();
  size_t small = 0;  // the smallest run that wastes little
  for (size_t shards = 1; shards <= limit; shards *= 2) {
    const size_t waste = round_up(shard * shards, page) - shard * shards;
    if (waste == 0) return shards;
    const double share = static_cast<double>(waste) / static_cast<double>(shards);
    if (small == 0 && share * 16 <= static_cast<double>(shard)) small = shards;
    if (share < least) {
      least = share;
      best = shards;
    }
  }
  return small != 0 ? small : best;
}

// What the weights take, for messages.
std::string weights_text(const MemoryLayout& layout) {
  return fmt::format("experts {} + other weights {} + reserve {}",
                     format_bytes(layout.expert_bytes()), format_bytes(layout.dense_weight_bytes),
                     format_bytes(layout.reserve_bytes));
}

// Splits the budget: what the weights leave becomes the base pool; what they lack, missing groups.
void place_budget(MemoryLayout& layout, size_t device_bytes) {
  const size_t fixed = layout.dense_weight_bytes + layout.reserve_bytes;
  if (device_bytes < fixed) {
    throw Error(
        "{} of device memory do not hold the {} that never move ({}): raise the budget by {}",
        format_bytes(device_bytes), format_bytes(fixed), weights_text(layout),
        format_bytes(fixed - device_bytes));
  }
  const size_t room = device_bytes - fixed;
  size_t backed = layout.expert_bytes();
  if (room < backed) {
    const size_t lacking = backed - room;
    layout.missing_groups =
        static_cast<int>((lacking + layout.group_bytes() - 1) / layout.group_bytes());
    backed -= layout.group_bytes() * layout.missing_groups;
  }
  layout.base_pool_bytes = (room - backed) / layout.page_bytes * layout.page_bytes;
}

// The least n at which every kept expert has memory and the pool holds `min_pool_bytes`, or -1.
int least_boundary(const MemoryLayout& layout, size_t min_pool_bytes) {
  for (int n = 0; n <= layout.max_groups_out(); ++n) {
    const int slots = layout.pool_slots(n);
    if (slots < 0) continue;
    const size_t pool = layout.base_pool_bytes + layout.group_bytes() * static_cast<size_t>(slots);
    if (pool >= min_pool_bytes) return n;
  }
  return -1;
}

void check_block_count(const MemoryLayout& layout) {
  const size_t arena =
      layout.base_pool_bytes + layout.group_bytes() * static_cast<size_t>(layout.max_pool_slots());
  if (arena / layout.block_bytes > static_cast<size_t>(std::numeric_limits<BlockId>::max())) {
    throw Error(
        "a KV arena of {} in blocks of {} has more than 2^31 blocks: use more tokens a block",
        format_bytes(arena), format_bytes(layout.block_bytes));
  }
}

}  // namespace

int ExpertGeometry::groups_for_percent(double percent, bool round_to_increment) const {
  // The small addend keeps decimal percentages exact: 512 x 12.5% is 64, not 63.
  auto shards = static_cast<int>(std::floor(experts * percent / 100.0 + 1e-9));
  if (round_to_increment) shards = shards / kPaperIncrementShards * kPaperIncrementShards;
  return percent >= 100 ? groups_per_layer : shards / shards_per_group;
}

ExpertGeometry make_expert_geometry(const ModelConfig& model, int tensor_parallel,
                                    size_t page_bytes) {
  check_tensor_parallel(model, tensor_parallel);
  check_page(page_bytes);
  ExpertGeometry geometry;
  geometry.moe_layers = model.num_moe_layers();
  geometry.experts = model.num_experts;
  const size_t down = static_cast<size_t>(model.moe_intermediate_size / tensor_parallel) *
                      static_cast<size_t>(model.hidden_size) * dtype_bytes(model.dtype);
  geometry.gate_up_data_bytes = 2 * down;
  geometry.down_data_bytes = down;
  geometry.gate_up_shard_bytes = round_up(2 * down, kMatrixAlignment);
  const size_t shard = geometry.gate_up_shard_bytes + round_up(down, kMatrixAlignment);
  // A power of two of at most page / 256: so many always fill pages. So the stride is a multiple of
  // 256, padded or not.
  const size_t shards = choose_shards_per_group(shard, geometry.experts, page_bytes);
  geometry.shards_per_group = static_cast<int>(shards);
  geometry.down_shard_bytes =
      round_up(shard * shards, page_bytes) / shards - geometry.gate_up_shard_bytes;
  geometry.groups_per_layer =
      (geometry.experts + geometry.shards_per_group - 1) / geometry.shards_per_group;
  return geometry;
}

size_t kv_bytes_per_token(const ModelConfig& model, int tensor_parallel, DType kv_dtype) {
  const int heads = std::max(1, model.num_kv_heads / tensor_parallel);
  return size_t{2} * static_cast<size_t>(model.num_full_attention_layers()) *
         static_cast<size_t>(heads) * static_cast<size_t>(model.head_dim) * dtype_bytes(kv_dtype);
}

size_t recurrent_state_bytes(const ModelConfig& model, int tensor_parallel) {
  const auto layers = static_cast<size_t>(model.num_layers() - model.num_full_attention_layers());
  const auto keys = static_cast<size_t>(model.linear_num_key_heads * model.linear_key_head_dim);
  const auto values =
      static_cast<size_t>(model.linear_num_value_heads * model.linear_value_head_dim);
  const size_t recurrence = values * static_cast<size_t>(model.linear_key_head_dim) * sizeof(float);
  const size_t width = layers == 0 ? 0 : static_cast<size_t>(model.linear_conv_kernel_dim - 1);
  const size_t convolution = (2 * keys + values) * width * dtype_bytes(model.dtype);
  return layers * (recurrence + convolution) / static_cast<size_t>(tensor_parallel);
}

OffloadOrder round_robin_order(const ExpertGeometry& experts, int groups_out_per_layer,
                               bool first_moe_layer_resident) {
  OffloadOrder order;
  for (int taken = 0; taken < groups_out_per_layer; ++taken) {
    for (int layer = first_moe_layer_resident ? 1 : 0; layer < experts.moe_layers; ++layer) {
      order.groups.push_back({layer, experts.groups_per_layer - 1 - taken});
    }
  }
  return order;
}

void MemoryLayout::set_order(OffloadOrder new_order) {
  given_up_at_.assign(moe_layers, {});
  bank_groups_.assign(1, 0);
  int banks[2] = {0, 0};
  for (size_t k = 0; k < new_order.groups.size(); ++k) {
    const GroupId id = new_order.groups[k];
    VAMP_CHECK(id.moe_layer >= 0 && id.moe_layer < moe_layers, "layer {}", id.moe_layer);
    std::vector<int>& layer = given_up_at_[id.moe_layer];
    const int taken = static_cast<int>(layer.size());
    VAMP_CHECK(id.group == groups_per_layer - 1 - taken && taken < max_groups_out_per_layer,
               "group {} of layer {} is not its tail", id.group, id.moe_layer);
    layer.push_back(static_cast<int>(k) + 1);
    int& bank = banks[id.moe_layer % 2];
    bank = std::max(bank, taken + 1);
    bank_groups_.push_back(banks[0] + banks[1]);
  }
  order = std::move(new_order);
}

int MemoryLayout::groups_out(int n, int moe_layer) const {
  const std::vector<int>& layer = given_up_at_[moe_layer];
  return static_cast<int>(std::upper_bound(layer.begin(), layer.end(), n) - layer.begin());
}

int MemoryLayout::bank_groups(int n) const {
  VAMP_CHECK(n >= 0 && n <= max_groups_out(), "boundary {} of {}", n, max_groups_out());
  return bank_groups_[n];
}

int MemoryLayout::max_blocks() const {
  const size_t arena = base_pool_bytes + group_bytes() * static_cast<size_t>(max_pool_slots());
  return static_cast<int>(arena / block_bytes);
}

std::vector<BlockId> MemoryLayout::blocks_touching(PoolSlot slot,
                                                   const std::vector<bool>& mapped) const {
  const size_t begin = base_pool_bytes + group_bytes() * static_cast<size_t>(slot);
  const size_t end = begin + group_bytes();
  const auto slot_of = [&](size_t byte) { return (byte - base_pool_bytes) / group_bytes(); };
  const auto backed = [&](size_t first_byte, size_t last_byte) {
    if (last_byte < base_pool_bytes) return true;
    const size_t first_slot = first_byte < base_pool_bytes ? 0 : slot_of(first_byte);
    for (size_t s = first_slot; s <= slot_of(last_byte); ++s) {
      if (s >= mapped.size() || !mapped[s]) return false;
    }
    return true;
  };
  std::vector<BlockId> blocks;
  for (size_t block = begin / block_bytes; block * block_bytes < end; ++block) {
    if (backed(block * block_bytes, (block + 1) * block_bytes - 1)) {
      blocks.push_back(static_cast<BlockId>(block));
    }
  }
  return blocks;
}

MemoryLayout make_memory_layout(const ModelConfig& model, const MemoryLayoutOptions& options) {
  check_options(options);
  MemoryLayout layout;
  static_cast<ExpertGeometry&>(layout) =
      make_expert_geometry(model, options.tensor_parallel, options.page_bytes);
  layout.tensor_parallel = options.tensor_parallel;
  layout.page_bytes = options.page_bytes;
  layout.increment_groups = options.increment_groups;
  layout.dense_weight_bytes =
      round_up(dense_weight_bytes(model, options.tensor_parallel), options.page_bytes);
  layout.reserve_bytes = round_up(options.reserve_bytes, options.page_bytes);
  layout.block_tokens = options.block_tokens;
  layout.kv_bytes_per_token = kv_bytes_per_token(model, options.tensor_parallel, options.kv_dtype);
  layout.block_bytes = layout.kv_bytes_per_token * static_cast<size_t>(options.block_tokens);
  layout.recurrent_state_bytes = recurrent_state_bytes(model, options.tensor_parallel);
  layout.max_groups_out_per_layer =
      layout.groups_for_percent(options.max_offload_percent, options.round_to_increment);
  place_budget(layout, options.device_bytes);

  const size_t min_pool = std::max(options.min_pool_bytes, layout.block_bytes);
  for (const bool first_resident : {true, false}) {
    layout.first_moe_layer_resident = first_resident;
    layout.set_order(round_robin_order(layout, layout.max_groups_out_per_layer, first_resident));
    layout.min_groups_out = least_boundary(layout, min_pool);
    if (layout.min_groups_out >= 0) {
      check_block_count(layout);
      return layout;
    }
  }
  const int most = layout.max_groups_out();
  throw Error(
      "{} of device memory do not hold {} and a KV pool of {}: {} groups of {} lack memory, "
      "and the {} that an offload ratio of {} percent lets go free {} besides the staging "
      "banks; raise the budget or the ratio",
      format_bytes(options.device_bytes), weights_text(layout), format_bytes(min_pool),
      layout.missing_groups, format_bytes(layout.group_bytes()), most, options.max_offload_percent,
      most - layout.bank_groups(most));
}

}  // namespace vamp
