// For tests: a policy that answers anything that is allowed, so that all that a policy may ask for
// happens.
#pragma once

#include "base/random.h"
#include "core/reclaim_policy.h"

namespace vamp {

// Deterministic by seed.
class RandomPolicy final : public ReclaimPolicy {
 public:
  explicit RandomPolicy(uint64_t seed) : random_(seed) {}
  const char* name() const override { return "random"; }

  ReclaimDecision choose(const ReclaimInputs& inputs) override {
    ReclaimDecision decision;
    const auto some = [&](int n) {
      return static_cast<int>(random_.below(static_cast<uint64_t>(n) + 1));
    };
    if (random_.chance(0.5)) decision.drop_blocks = some(inputs.gap_blocks);
    for (const EvictionCandidate& candidate : inputs.evictable) {
      if (random_.chance(0.2)) decision.drop.push_back(candidate.handle);
      if (random_.chance(0.3)) decision.demote.push_back(candidate.handle);
    }
    if (inputs.boundary.can_move && random_.chance(0.3)) decision.give_up_groups = some(4);
    for (const PreemptionCandidate& victim : inputs.victims) {
      if (random_.chance(0.1)) decision.preempt_recompute.push_back(victim.id);
      if (random_.chance(0.3)) decision.preempt_swap.push_back(victim.id);
    }
    decision.wait = inputs.admission && random_.chance(0.2);
    return decision;
  }
  std::optional<int> admission_limit(int, Micros) override {
    if (!random_.chance(0.1)) return std::nullopt;
    return static_cast<int>(random_.below(40));
  }
  BackgroundDecision background(const BackgroundInputs& inputs) override {
    BackgroundDecision decision;
    for (const EvictionCandidate& candidate : inputs.dirty) {
      if (random_.chance(0.1)) decision.write_back.push_back(candidate.handle);
    }
    if (inputs.boundary.can_move && random_.chance(0.2)) {
      decision.restore_groups = static_cast<int>(random_.between(1, 6));
    }
    return decision;
  }
  bool hold_new_session(SessionId, int, Micros) override { return random_.chance(0.1); }

 private:
  Random random_;
};

}  // namespace vamp
