#include "core/decision_log.h"

namespace vamp {

void DecisionLog::made(DecisionRecord& record) {
  ++next_;
  record.repeats = 1;
  record.until = record.inputs.now;
  if (listener_.on_decision) listener_.on_decision(record);
  if (!listener_.on_decision && !listener_.on_decision_result) return;
  if (latest_.size() == kRemembered) {
    ended(latest_.front().id);
    latest_.pop_front();
  }
  latest_.push_back(record);
}

DecisionRecord* DecisionLog::find(uint64_t id) {
  if (latest_.empty() || id < latest_.front().id || id > latest_.back().id) return nullptr;
  return &latest_[id - latest_.front().id];
}

bool DecisionLog::repeated(uint64_t id, Micros now) {
  DecisionRecord* record = find(id);
  if (record == nullptr) return false;
  ++record->repeats;
  record->until = now;
  return true;
}

void DecisionLog::ended(uint64_t id) {
  const DecisionRecord* record = find(id);
  if (record != nullptr && record->repeats > 1 && listener_.on_decision_result) {
    listener_.on_decision_result(*record);
  }
}

void DecisionLog::reused(uint64_t id, int tokens, Micros now) {
  DecisionRecord* record = find(id);
  if (record == nullptr) return;
  record->reused_tokens += tokens;
  if (record->first_reuse < 0) record->first_reuse = now;
  if (listener_.on_decision_result) listener_.on_decision_result(*record);
}

}  // namespace vamp
