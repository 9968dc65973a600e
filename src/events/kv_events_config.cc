#include "events/kv_events_config.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>

#include "base/error.h"
#include "model/json_fields.h"

namespace vamp {
namespace {

constexpr const char* kFlag = "--kv-events-config";
constexpr std::array kKnown = {"enable_kv_cache_events", "publisher",    "endpoint",
                               "replay_endpoint",        "buffer_steps", "hwm",
                               "max_queue_size",         "topic",        "event_layout"};

std::string string_or(const JsonFields& fields, const char* field, const std::string& fallback) {
  return fields.has(field) ? fields.string(field) : fallback;
}

// An address without its transport is a mistake that ZMQ tells in terms of its own; of a port it
// takes the lowest 16 bits.
void check_endpoint(const JsonFields& fields, const char* field, const std::string& endpoint) {
  if (!endpoint.starts_with("tcp://") && !endpoint.starts_with("ipc://"))
    fields.wrong(field, "tcp://HOST:PORT or ipc://PATH");
  const std::string port = endpoint.substr(endpoint.rfind(':') + 1);
  const bool number = port.find_first_not_of("0123456789") == std::string::npos;
  if (endpoint.starts_with("tcp://") && number && std::strtoull(port.c_str(), nullptr, 10) > 65535)
    fields.wrong(field, "a port of at most 65535");
}

}  // namespace

KvEventsConfig parse_kv_events_config(const std::string& text) {
  KvEventsConfig config;
  if (text.empty()) return config;
  const nlohmann::json object = parse_json_object(text, kFlag);
  for (const auto& [field, value] : object.items()) {
    if (std::find(kKnown.begin(), kKnown.end(), field) != kKnown.end()) continue;
    std::string known;
    for (const char* name : kKnown) known += (known.empty() ? "" : ", ") + std::string(name);
    throw Error("{}: there is no field {}; known: {}", kFlag, quote(field), known);
  }
  const JsonFields fields(object, kFlag);
  constexpr int kMost = std::numeric_limits<int>::max();
  const bool wanted = fields.boolean_or("enable_kv_cache_events", false);
  const std::string publisher = string_or(fields, "publisher", wanted ? "zmq" : "null");
  if (publisher != "zmq" && publisher != "null") fields.wrong("publisher", "'zmq' or 'null'");
  config.enabled = wanted && publisher == "zmq";
  config.endpoint = string_or(fields, "endpoint", config.endpoint);
  check_endpoint(fields, "endpoint", config.endpoint);
  config.replay_endpoint = string_or(fields, "replay_endpoint", "");
  if (!config.replay_endpoint.empty())
    check_endpoint(fields, "replay_endpoint", config.replay_endpoint);
  config.buffer_steps = fields.integer_or("buffer_steps", config.buffer_steps, 1, kMost / 2);
  config.hwm = fields.integer_or("hwm", config.hwm, 0, kMost);
  config.max_queue_size = fields.integer_or("max_queue_size", config.max_queue_size, 1, kMost);
  config.topic = string_or(fields, "topic", "");
  const std::string layout = string_or(fields, "event_layout", "map");
  if (layout != "map" && layout != "array") fields.wrong("event_layout", "'map' or 'array'");
  config.layout = layout == "map" ? KvEventLayout::kMap : KvEventLayout::kArray;
  return config;
}

}  // namespace vamp
