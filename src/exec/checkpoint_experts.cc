#include "exec/checkpoint_experts.h"

#include <cstring>

namespace vamp {

CheckpointExperts::CheckpointExperts(const Checkpoint& checkpoint, const MemoryLayout& layout)
    : checkpoint_(checkpoint), layout_(layout), moe_layers_(checkpoint.model().moe_layers()) {}

void CheckpointExperts::copy(int moe_layer, int first, int count, std::byte* to) const {
  const size_t gate = layout_.gate_up_data_bytes / 2, down = layout_.down_data_bytes;
  for (int e = first; e < first + count; ++e) {
    const ExpertWeights expert = checkpoint_.expert(moe_layers_[moe_layer], e);
    std::memcpy(to, expert.gate, gate);
    std::memcpy(to + gate, expert.up, gate);
    std::memset(to + 2 * gate, 0, layout_.gate_up_shard_bytes - 2 * gate);
    to += layout_.gate_up_shard_bytes;
    std::memcpy(to, expert.down, down);
    std::memset(to + down, 0, layout_.down_shard_bytes - down);
    to += layout_.down_shard_bytes;
  }
  if (report_) report_(static_cast<size_t>(count) * layout_.shard_bytes());
}

}  // namespace vamp
