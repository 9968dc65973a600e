// One engine, several listeners: the server's streams, its metrics, KV events, a dashboard.
#pragma once

#include <vector>

#include "engine/engine.h"

namespace vamp {

// Tells each listener in turn, from the engine's thread. They must outlive it.
class ListenerFanout final : public EngineListener {
 public:
  void add(EngineListener& listener) { listeners_.push_back(&listener); }

  void on_token(const RequestEvent& event) override {
    for (EngineListener* listener : listeners_) listener->on_token(event);
  }
  void on_prompt_token(const RequestEvent& event) override {
    for (EngineListener* listener : listeners_) listener->on_prompt_token(event);
  }
  void on_finished(const RequestEvent& event, const RequestStats& stats) override {
    for (EngineListener* listener : listeners_) listener->on_finished(event, stats);
  }
  void on_step(const StepStats& stats) override {
    for (EngineListener* listener : listeners_) listener->on_step(stats);
  }
  void on_decision(const DecisionRecord& record) override {
    for (EngineListener* listener : listeners_) listener->on_decision(record);
  }
  void on_decision_result(const DecisionRecord& record) override {
    for (EngineListener* listener : listeners_) listener->on_decision_result(record);
  }
  void on_kv_events(const std::vector<KvEvent>& events) override {
    for (EngineListener* listener : listeners_) listener->on_kv_events(events);
  }
  void on_delivered() override {
    for (EngineListener* listener : listeners_) listener->on_delivered();
  }

 private:
  std::vector<EngineListener*> listeners_;
};

}  // namespace vamp
