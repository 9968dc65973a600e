#include "exec/checkpoint_experts.h"

#include <cstring>

namespace vamp {

CheckpointExperts::CheckpointExperts(const Checkpoint& checkpoint, const MemoryLayout& layout)
    : checkpoint_(checkpoint), layout_(layout), moe_layers_(checkpoint.model().moe_layers()) {}

void CheckpointExperts::copy_gate_up(int moe_layer, int first, int count, std::byte* to) const {
  const size_t matrix = layout_.gate_up_data_bytes / 2;
  const size_t padding = layout_.gate_up_shard_bytes - layout_.gate_up_data_bytes;
  for (int e = first; e < first + count; ++e, to += layout_.gate_up_shard_bytes) {
    const ExpertWeights expert = checkpoint_.expert(moe_layers_[moe_layer], e);
    std::memcpy(to, expert.gate, matrix);
    std::memcpy(to + matrix, expert.up, matrix);
    std::memset(to + 2 * matrix, 0, padding);
  }
  if (report_) report_(static_cast<size_t>(count) * layout_.gate_up_shard_bytes);
}

void CheckpointExperts::copy_down(int moe_layer, int first, int count, std::byte* to) const {
  const size_t matrix = layout_.down_data_bytes;
  for (int e = first; e < first + count; ++e, to += layout_.down_shard_bytes) {
    std::memcpy(to, checkpoint_.expert(moe_layers_[moe_layer], e).down, matrix);
    std::memset(to + matrix, 0, layout_.down_shard_bytes - matrix);
  }
  if (report_) report_(static_cast<size_t>(count) * layout_.down_shard_bytes);
}

}  // namespace vamp
