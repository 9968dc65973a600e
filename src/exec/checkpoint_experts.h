// The host copy of the experts is the checkpoint itself.
#pragma once

#include <functional>
#include <vector>

#include "memory/host_experts.h"
#include "model/checkpoint.h"
#include "model/memory_layout.h"

namespace vamp {

// Copies expert shards out of a checkpoint, whose files stay mapped: their pages are the system's
// to take back when memory is short. Any thread; both references must outlive it.
class CheckpointExperts final : public HostExperts {
 public:
  CheckpointExperts(const Checkpoint& checkpoint, const MemoryLayout& layout);

  // Told the bytes of each copy, by the thread that makes it; empty: nobody is. Set while no copy
  // is being made.
  void set_report(std::function<void(size_t bytes)> report) { report_ = std::move(report); }

  void copy(int moe_layer, int first, int count, std::byte* to) const override;

 private:
  const Checkpoint& checkpoint_;
  const MemoryLayout& layout_;
  std::vector<int> moe_layers_;
  std::function<void(size_t)> report_;
};

}  // namespace vamp
