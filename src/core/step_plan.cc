#include "core/step_plan.h"

namespace vamp {

int StepPlan::num_tokens() const {
  int tokens = 0;
  for (const BatchEntry& entry : batch) tokens += entry.count;
  return tokens;
}

bool StepPlan::empty() const {
  return !reset && release.empty() && !boundary && move_blocks.empty() && edit_tables.empty() &&
         demote.empty() && promote.empty() && start.empty() && batch.empty() && !await_copies;
}

}  // namespace vamp
