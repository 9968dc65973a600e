#include "core/decision_log.h"

namespace vamp {

void DecisionLog::made(const DecisionRecord& record) {
  ++next_;
  if (listener_.on_decision) listener_.on_decision(record);
  if (!listener_.on_decision_result) return;
  latest_.push_back(record);
  if (latest_.size() > kRemembered) latest_.pop_front();
}

void DecisionLog::reused(uint64_t id, int tokens, Micros now) {
  if (latest_.empty() || id < latest_.front().id || id > latest_.back().id) return;
  DecisionRecord& record = latest_[id - latest_.front().id];
  record.reused_tokens += tokens;
  if (record.first_reuse < 0) record.first_reuse = now;
  listener_.on_decision_result(record);
}

}  // namespace vamp
