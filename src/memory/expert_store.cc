#include "memory/expert_store.h"

#include <algorithm>

#include "base/error.h"

namespace vamp {

int movable_groups(const MemoryLayout& layout, int moe_layer) {
  if (moe_layer == 0 && layout.first_moe_layer_resident) return 0;
  return std::min(layout.max_groups_out_per_layer, layout.groups_per_layer);
}

ExpertStore::ExpertStore(const MemoryLayout& layout, VirtualMemory& memory)
    : layout_(layout), memory_(memory), layers_(static_cast<size_t>(layout.moe_layers)) {
  for (int m = 0; m < layout.moe_layers; ++m)
    layers_[m].tail.resize(static_cast<size_t>(vamp::movable_groups(layout, m)));
  try {
    for (Layer& layer : layers_) layer.base = memory.reserve(layer_bytes());
  } catch (...) {
    release_ranges();
    throw;
  }
}

ExpertStore::~ExpertStore() {
  release_ranges();
}

void ExpertStore::release_ranges() noexcept {
  for (Layer& layer : layers_) {
    try {
      if (layer.base) memory_.release(layer.base, layer_bytes());
    } catch (const std::exception&) {
      // Addresses stay taken until the process ends; nobody uses them.
    }
  }
}

std::byte* ExpertStore::expert(int moe_layer, int expert) const {
  return layers_[moe_layer].base + static_cast<size_t>(expert) * layout_.shard_bytes();
}

std::byte* ExpertStore::group(GroupId id) const {
  return expert(id.moe_layer, id.group * layout_.shards_per_group);
}

int ExpertStore::first_given_up_expert(int moe_layer) const {
  const int groups = layout_.groups_per_layer - groups_out(moe_layer);
  return std::min(layout_.experts, groups * layout_.shards_per_group);
}

int ExpertStore::experts_out(int moe_layer) const {
  return layout_.experts - first_given_up_expert(moe_layer);
}

int ExpertStore::head_groups(int moe_layer) const {
  return layout_.groups_per_layer - movable_groups(moe_layer);
}

const Extent& ExpertStore::frame(GroupId id) const {
  VAMP_CHECK(is_movable(id) && id.group < layout_.groups_per_layer, "group {} of MoE layer {}",
             id.group, id.moe_layer);
  return layers_[id.moe_layer].tail[static_cast<size_t>(id.group - head_groups(id.moe_layer))];
}

Extent& ExpertStore::tail_frame(GroupId id) {
  return const_cast<Extent&>(frame(id));
}

Extent ExpertStore::offload(GroupId id) {
  Layer& layer = layers_[id.moe_layer];
  VAMP_CHECK(id.group == layout_.groups_per_layer - 1 - layer.out,
             "group {} of MoE layer {} is not its last resident one", id.group, id.moe_layer);
  Extent frame = std::move(tail_frame(id));
  ++layer.out;
  return frame;
}

void ExpertStore::restore(GroupId id, Extent frame) {
  Layer& layer = layers_[id.moe_layer];
  VAMP_CHECK(id.group == layout_.groups_per_layer - layer.out,
             "group {} of MoE layer {} is not its first given-up one", id.group, id.moe_layer);
  --layer.out;
  frame.hand_to(Holder::kExpertStore);
  tail_frame(id) = std::move(frame);
}

void ExpertStore::set_frame(GroupId id, Extent frame) {
  VAMP_CHECK(!tail_frame(id));
  frame.hand_to(Holder::kExpertStore);
  tail_frame(id) = std::move(frame);
}

void ExpertStore::set_head(int moe_layer, Extent extent) {
  extent.hand_to(Holder::kExpertStore);
  layers_[moe_layer].head = std::move(extent);
}

}  // namespace vamp
