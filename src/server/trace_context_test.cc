#include "server/trace_context.h"

#include <gmock/gmock.h>

#include "server/test_support.h"

namespace vamp {
namespace {

constexpr const char* kTrace = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr const char* kParent = "00f067aa0ba902b7";

std::string given(const std::string& version, const std::string& flags) {
  return version + "-" + kTrace + "-" + kParent + "-" + flags;
}

std::optional<TraceContext> read_headers(HttpHeaders headers) {
  HttpRequest request;
  request.headers = std::move(headers);
  return read_trace_context(request);
}

TEST(TraceContext, GoesOnWithASpanOfItsOwn) {
  const auto trace = read_headers({{"traceparent", given("00", "01")}, {"tracestate", "a=1,b=2"}});
  ASSERT_TRUE(trace);
  EXPECT_EQ(trace->trace_id, kTrace);
  EXPECT_EQ(trace->parent_id, kParent);
  EXPECT_EQ(trace->span_id.size(), 16u);
  EXPECT_NE(trace->span_id, kParent);
  EXPECT_EQ(trace->traceparent(), std::string("00-") + kTrace + "-" + trace->span_id + "-01");
  EXPECT_EQ(trace->state, "a=1,b=2");
  EXPECT_NE(read_headers({{"traceparent", given("00", "01")}})->span_id, trace->span_id);
}

TEST(TraceContext, TakesVersionsToComeAndFlagsItDoesNotKnow) {
  EXPECT_TRUE(read_headers({{"traceparent", given("cc", "01") + "-what-comes-then"}}));
  EXPECT_EQ(read_headers({{"traceparent", given("00", "0a")}})->flags, "00");
  EXPECT_EQ(read_headers({{"traceparent", given("00", "ff")}})->flags, "01");
}

TEST(TraceContext, WhatIsMalformedIsPassedOver) {
  const std::string good = given("00", "01");
  const auto with = [&](size_t at, const std::string& text) {
    return std::string(good).replace(at, text.size(), text);
  };
  for (const std::string& bad :
       {std::string(), good.substr(1), good + "0", good + "-x", given("ff", "01"), with(2, "_"),
        with(3, std::string(32, '0')), with(36, std::string(16, '0')), with(10, "G"), with(10, "F"),
        with(53, "x"), given("cc", "01") + "x"}) {
    EXPECT_FALSE(read_headers({{"traceparent", bad}})) << bad;
  }
  EXPECT_FALSE(read_headers({{"traceparent", good}, {"traceparent", good}}));
  EXPECT_FALSE(read_headers({{"tracestate", "a=1"}}));
  EXPECT_EQ(
      read_headers({{"traceparent", good}, {"tracestate", "a=1"}, {"tracestate", "b=2"}})->state,
      "a=1,b=2");
  EXPECT_EQ(read_headers({{"traceparent", good}, {"tracestate", std::string(513, 'a')}})->state,
            "");
  EXPECT_EQ(read_headers({{"traceparent", good}, {"tracestate", "a=\x80"}})->state, "");
}

TEST(TraceContext, EveryKindOfResponseNamesItsSpan) {
  TestServer server;
  const std::string headers = "traceparent: " + given("00", "01") + "\r\ntracestate: a=1\r\n";
  nlohmann::json streamed = kChat, faulty = kChat;
  streamed["stream"] = true;
  faulty["n"] = 0;
  std::set<std::string> spans;
  for (const nlohmann::json& body : {kChat, streamed, faulty}) {
    const HttpReply reply = post(server.port(), "/v1/chat/completions", body, headers);
    ASSERT_TRUE(reply.headers.contains("traceparent")) << reply.status;
    const std::string parent = reply.headers.at("traceparent");
    EXPECT_EQ(parent.substr(0, 36), std::string("00-") + kTrace + "-");
    spans.insert(parent.substr(36, 16));
    EXPECT_EQ(reply.headers.at("tracestate"), "a=1");
  }
  EXPECT_EQ(spans.size(), 3u);
  EXPECT_FALSE(spans.contains(kParent));
  // Nor does it stay on the connection.
  RawClient client(server.port());
  client.send(request_text("GET", "/health", "", headers) + request_text("GET", "/health"));
  EXPECT_TRUE(client.read_reply().headers.contains("traceparent"));
  EXPECT_FALSE(client.read_reply().headers.contains("traceparent"));
}

}  // namespace
}  // namespace vamp
