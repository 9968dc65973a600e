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
  const auto groups = static_cast<size_t>(layout.groups_per_layer);
  try {
    for (Layer& layer : layers_) {
      layer.gate_up = memory.reserve(groups * layout.gate_up_group_bytes());
      layer.down = memory.reserve(groups * layout.down_group_bytes());
    }
  } catch (...) {
    release_ranges();
    throw;
  }
}

ExpertStore::~ExpertStore() {
  release_ranges();
}

void ExpertStore::release_ranges() noexcept {
  const auto groups = static_cast<size_t>(layout_.groups_per_layer);
  for (Layer& layer : layers_) {
    try {
      if (layer.gate_up) memory_.release(layer.gate_up, groups * layout_.gate_up_group_bytes());
      if (layer.down) memory_.release(layer.down, groups * layout_.down_group_bytes());
    } catch (const std::exception&) {
      // Addresses stay taken until the process ends; nobody uses them.
    }
  }
}

std::byte* ExpertStore::gate_up(GroupId id) const {
  return gate_up(id.moe_layer) + static_cast<size_t>(id.group) * layout_.gate_up_group_bytes();
}

std::byte* ExpertStore::down(GroupId id) const {
  return down(id.moe_layer) + static_cast<size_t>(id.group) * layout_.down_group_bytes();
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

const Frame& ExpertStore::frame(GroupId id) const {
  VAMP_CHECK(is_movable(id) && id.group < layout_.groups_per_layer, "group {} of MoE layer {}",
             id.group, id.moe_layer);
  return layers_[id.moe_layer].tail[static_cast<size_t>(id.group - head_groups(id.moe_layer))];
}

Frame& ExpertStore::tail_frame(GroupId id) {
  return const_cast<Frame&>(frame(id));
}

Frame ExpertStore::offload(GroupId id) {
  Layer& layer = layers_[id.moe_layer];
  VAMP_CHECK(id.group == layout_.groups_per_layer - 1 - layer.out,
             "group {} of MoE layer {} is not its last resident one", id.group, id.moe_layer);
  Frame frame = std::move(tail_frame(id));
  ++layer.out;
  return frame;
}

void ExpertStore::restore(GroupId id, Frame frame) {
  Layer& layer = layers_[id.moe_layer];
  VAMP_CHECK(id.group == layout_.groups_per_layer - layer.out,
             "group {} of MoE layer {} is not its first given-up one", id.group, id.moe_layer);
  --layer.out;
  frame.hand_to(Holder::kExpertStore);
  tail_frame(id) = std::move(frame);
}

void ExpertStore::set_frame(GroupId id, Frame frame) {
  VAMP_CHECK(!tail_frame(id));
  frame.hand_to(Holder::kExpertStore);
  tail_frame(id) = std::move(frame);
}

void ExpertStore::set_head(int moe_layer, Extent gate_up, Extent down) {
  gate_up.hand_to(Holder::kExpertStore);
  down.hand_to(Holder::kExpertStore);
  layers_[moe_layer].head_gate_up = std::move(gate_up);
  layers_[moe_layer].head_down = std::move(down);
}

}  // namespace vamp
