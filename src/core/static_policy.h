// What a static engine does when KV blocks run out: evict least recently used prefixes, then
// preempt by recompute, else wait. It never touches experts or the host tier.
#pragma once

#include "core/reclaim_policy.h"

namespace vamp {

// Stateless. One thread.
class StaticPolicy final : public ReclaimPolicy {
 public:
  const char* name() const override { return "static"; }
  ReclaimDecision choose(const ReclaimInputs& inputs) override;
};

// The static order of things, also the last resort of the other policies: what is chosen when no
// action alone is feasible. For a waiting request it drops nothing unless that makes room for it.
ReclaimDecision evict_or_preempt(const ReclaimInputs& inputs);

}  // namespace vamp
