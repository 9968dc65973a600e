#include "events/kv_events_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace vamp {
namespace {

using testing::HasSubstr;

TEST(KvEventsConfig, IsVllms) {
  EXPECT_FALSE(parse_kv_events_config("").enabled);
  EXPECT_FALSE(parse_kv_events_config("{}").enabled);
  EXPECT_FALSE(parse_kv_events_config(R"({"publisher": "zmq"})").enabled);
  EXPECT_FALSE(
      parse_kv_events_config(R"({"enable_kv_cache_events": true, "publisher": "null"})").enabled);
  const KvEventsConfig plain = parse_kv_events_config(R"({"enable_kv_cache_events": true})");
  EXPECT_TRUE(plain.enabled);
  EXPECT_EQ(plain.endpoint, "tcp://*:5557");
  EXPECT_EQ(plain.replay_endpoint, "");
  EXPECT_EQ(plain.layout, KvEventLayout::kMap);
  const KvEventsConfig all = parse_kv_events_config(
      R"({"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://*:5600",
          "replay_endpoint": "ipc:///tmp/x", "buffer_steps": 7, "hwm": 8, "max_queue_size": 9,
          "topic": "kv@pod@model", "event_layout": "array"})");
  EXPECT_EQ(all.endpoint, "tcp://*:5600");
  EXPECT_EQ(all.replay_endpoint, "ipc:///tmp/x");
  EXPECT_EQ(all.buffer_steps, 7);
  EXPECT_EQ(all.hwm, 8);
  EXPECT_EQ(all.max_queue_size, 9);
  EXPECT_EQ(all.topic, "kv@pod@model");
  EXPECT_EQ(all.layout, KvEventLayout::kArray);
}

TEST(KvEventsConfig, FaultsNameTheFlagAndTheField) {
  const std::vector<std::pair<std::string, std::string>> faults = {
      {"{", "not valid JSON"},
      {"[]", "expected a JSON object"},
      {R"({"endpont": "x"})", "there is no field 'endpont'; known: enable_kv_cache_events"},
      {R"({"enable_kv_cache_events": 1})", "'enable_kv_cache_events'"},
      {R"({"publisher": "kafka"})", "'publisher' is 'kafka'; expected 'zmq' or 'null'"},
      {R"({"endpoint": "*:5557"})", "expected tcp://HOST:PORT"},
      {R"({"endpoint": "tcp://*:65536"})", "a port of at most 65535"},
      {R"({"endpoint": "tcp://*:99999999999999999999"})", "a port of at most 65535"},
      {R"({"replay_endpoint": "5558"})", "'replay_endpoint'"},
      {R"({"buffer_steps": 0})", "'buffer_steps'"},
      {R"({"hwm": -1})", "'hwm'"},
      {R"({"max_queue_size": 0})", "'max_queue_size'"},
      {R"({"event_layout": "list"})", "expected 'map' or 'array'"},
  };
  for (const auto& [text, message] : faults) {
    try {
      parse_kv_events_config(text);
      ADD_FAILURE() << text;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("--kv-events-config: "));
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  }
}

}  // namespace
}  // namespace vamp
