// What hostile, broken and slow clients get, and that the others do not notice.
#include <gmock/gmock.h>

#include <chrono>
#include <thread>

#include "server/test_support.h"

namespace vamp {
namespace {

using nlohmann::json;
using testing::HasSubstr;

ServerOptions tight_options() {
  ServerOptions options;
  options.http.max_header_bytes = 4096;
  options.http.max_body_bytes = 20000;
  options.http.header_seconds = 0.5;
  options.http.body_seconds = 0.5;
  options.http.idle_seconds = 30;
  options.http.max_connections = 50;
  options.http.keep_alive_seconds = 0.2;
  return options;
}

class HttpLimits : public testing::Test {
 protected:
  TestServer server_{"Hello", tight_options()};
  const int port_ = server_.port();

  void others_are_served() { EXPECT_EQ(post(port_, "/v1/chat/completions", kChat).status, 200); }
};

TEST_F(HttpLimits, PipelinedRequestsAreAnsweredInOrder) {
  RawClient client(port_);
  client.send(request_text("GET", "/version") +
              request_text("POST", "/v1/chat/completions", kChat.dump()) +
              request_text("GET", "/health"));
  EXPECT_THAT(client.read_reply().body, HasSubstr("version"));
  EXPECT_THAT(client.read_reply().body, HasSubstr("Hello"));
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST_F(HttpLimits, BodiesMayComeByteByByteAndInChunks) {
  RawClient client(port_);
  const std::string text = request_text("POST", "/v1/chat/completions", kChat.dump());
  for (const char c : text) ASSERT_TRUE(client.send({&c, 1}));
  EXPECT_THAT(client.read_reply().body, HasSubstr("Hello"));
  std::string chunked =
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
  const std::string body = kChat.dump();
  for (const char c : body) chunked += std::string("1\r\n") + c + "\r\n";
  client.send(chunked + "0\r\n\r\n");
  EXPECT_THAT(client.read_reply().body, HasSubstr("Hello"));
}

TEST_F(HttpLimits, ExpectContinueIsAnswered) {
  RawClient client(port_);
  const std::string body = kChat.dump();
  client.send(
      "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
      "Content-Length: " +
      std::to_string(body.size()) + "\r\n\r\n");
  EXPECT_EQ(client.read_head().status, 100);
  client.send(body);
  EXPECT_EQ(client.read_reply().status, 200);
}

TEST_F(HttpLimits, TooMuchIsRefusedWithItsStatus) {
  RawClient announced(port_);  // before the body is read
  announced.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 1073741824\r\n\r\n");
  EXPECT_EQ(announced.read_reply().status, 413);
  RawClient sent(port_);  // while the client still writes
  sent.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string chunk = "1000\r\n" + std::string(0x1000, 'x') + "\r\n";
  for (int i = 0; i < 100 && sent.send(chunk); ++i) {
  }
  EXPECT_EQ(sent.read_reply().status, 413);
  RawClient flood(port_);
  std::string headers = "GET /health HTTP/1.1\r\n";
  for (int i = 0; i < 100'000; ++i) headers += "X-" + std::to_string(i) + ": y\r\n";
  flood.send(headers);
  EXPECT_EQ(flood.read_reply().status, 431);
  RawClient nonsense(port_);
  nonsense.send("HELO example.com\r\n\r\n");
  EXPECT_EQ(nonsense.read_reply().status, 400);
  others_are_served();
}

TEST_F(HttpLimits, CompressedBodiesAreRefusedByName) {
  const HttpReply reply = post(port_, "/v1/chat/completions", kChat, "Content-Encoding: gzip\r\n");
  EXPECT_EQ(reply.status, 415);
  EXPECT_THAT(reply.body, HasSubstr("Content-Encoding: gzip"));
  EXPECT_EQ(post(port_, "/v1/chat/completions", kChat, "Content-Encoding: identity\r\n").status,
            200);
}

TEST_F(HttpLimits, ABodyOfUnknownLengthIsNoNextRequest) {
  RawClient client(port_);
  client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n" +
              request_text("GET", "/version"));
  EXPECT_EQ(client.read_reply().status, 415);
  EXPECT_TRUE(client.closed());
}

TEST_F(HttpLimits, SlowSendersAreCutOff) {
  RawClient head(port_), body(port_);
  head.send("GET /health HT");
  body.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{");
  EXPECT_EQ(head.read_reply().status, 408);
  EXPECT_EQ(body.read_reply().status, 408);
  EXPECT_TRUE(head.closed());
  others_are_served();
}

TEST_F(HttpLimits, ConnectionsBeyondTheLimitAreTold) {
  std::vector<std::unique_ptr<RawClient>> idle;
  for (int i = 0; i < 50; ++i) idle.push_back(std::make_unique<RawClient>(port_));
  ASSERT_TRUE(eventually([&] { return server_.server().http().connections() == 50; }));
  const HttpReply reply = get(port_, "/health");
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.headers.at("retry-after"), "1");
  idle.clear();
  ASSERT_TRUE(eventually([&] { return server_.server().http().connections() == 0; }));
  others_are_served();
}

TEST_F(HttpLimits, AClientThatLeavesStopsItsRequest) {
  server_.controls().step_time = 5000;
  json body = kChat;
  body["ignore_eos"] = true;
  body["max_tokens"] = 900;
  for (const bool stream : {true, false}) {
    body["stream"] = stream;
    RawClient client(port_);
    client.send(request_text("POST", "/v1/chat/completions", body.dump()));
    ASSERT_TRUE(eventually([&] { return server_.server().service().bridge().requests() == 1; }));
    client.close_now();
    EXPECT_TRUE(eventually([&] { return server_.server().service().bridge().requests() == 0; }));
  }
  others_are_served();
}

// With a pipelined request behind it the socket has data to read: leaving is seen all the same.
TEST_F(HttpLimits, AClientThatLeavesBehindUnreadDataIsSeen) {
  server_.controls().step_time = 5000;
  json body = kChat;
  body["ignore_eos"] = true;
  body["max_tokens"] = 900;
  RawClient client(port_);
  client.send(request_text("POST", "/v1/chat/completions", body.dump()) +
              request_text("GET", "/health"));
  ASSERT_TRUE(eventually([&] { return server_.server().service().bridge().requests() == 1; }));
  client.close_now();
  EXPECT_TRUE(eventually([&] { return server_.server().service().bridge().requests() == 0; }));
}

TEST_F(HttpLimits, ASilentStreamShowsThatItLives) {
  server_.controls().hang = true;
  json body = kChat;
  body["stream"] = true;
  RawClient client(port_);
  client.send(request_text("POST", "/v1/chat/completions", body.dump()));
  EXPECT_THAT(client.read_until("keep-alive"), HasSubstr(": keep-alive"));
  server_.controls().hang = false;
  EXPECT_THAT(client.read_until("[DONE]"), HasSubstr("\"finish_reason\":\"stop\""));
}

TEST_F(HttpLimits, HttpOneZeroGetsNoChunks) {
  json body = kChat;
  body["stream"] = true;
  const std::string text = body.dump();
  RawClient client(port_);
  client.send("POST /v1/chat/completions HTTP/1.0\r\nContent-Length: " +
              std::to_string(text.size()) + "\r\n\r\n" + text);
  const HttpReply head = client.read_head();
  EXPECT_FALSE(head.headers.contains("transfer-encoding"));
  EXPECT_THAT(client.read_until("[DONE]\n\n"), HasSubstr("data: {"));
  EXPECT_TRUE(client.closed());
}

}  // namespace
}  // namespace vamp
