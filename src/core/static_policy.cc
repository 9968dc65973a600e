#include "core/static_policy.h"

#include <algorithm>

namespace vamp {

ReclaimDecision evict_or_preempt(const ReclaimInputs& inputs) {
  ReclaimDecision decision;
  const bool enough = inputs.cached_blocks >= inputs.gap_blocks;
  if (enough || (!inputs.victims.empty() && inputs.cached_blocks > 0)) {
    decision.kind = ActionKind::kDrop;
    decision.drop_blocks = std::min(inputs.gap_blocks, inputs.cached_blocks);
  }
  if (!enough && !inputs.victims.empty()) {
    // What it cached becomes evictable; the scheduler asks again if that is still too little.
    decision.kind = ActionKind::kPreemptRecompute;
    decision.preempt_recompute.push_back(inputs.victims.front().id);
  } else if (!enough) {
    decision.kind = ActionKind::kWait;
    decision.wait = true;
  }
  return decision;
}

ReclaimDecision StaticPolicy::choose(const ReclaimInputs& inputs) {
  ReclaimDecision decision = evict_or_preempt(inputs);
  decision.costs.push_back({decision.kind, 0});
  decision.note = "fixed order: evict, preempt, wait";
  return decision;
}

}  // namespace vamp
