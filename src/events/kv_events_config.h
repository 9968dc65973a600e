// --kv-events-config, as vLLM has it: who may follow what the prefix cache holds, and where.
#pragma once

#include <string>

namespace vamp {

// vLLM's two ways to write an event: since June 2026 a map with its "type", before that a list that
// begins with it.
enum class KvEventLayout { kMap, kArray };

struct KvEventsConfig {
  bool enabled = false;
  std::string endpoint = "tcp://*:5557";  // of the events
  std::string replay_endpoint;            // of requests for past batches; empty: none are kept
  int buffer_steps = 10'000;              // batches kept for them
  int hwm = 100'000;                      // batches that wait for a slow subscriber; 0: no limit
  int max_queue_size = 100'000;           // batches on their way out
  std::string topic;
  KvEventLayout layout = KvEventLayout::kMap;
};

// Reads vLLM's JSON object; empty: not enabled. Throws Error for what cannot be meant.
KvEventsConfig parse_kv_events_config(const std::string& json);

}  // namespace vamp
