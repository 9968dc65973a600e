// Clients that mean harm, or might as well: each is answered with its status or cut off, costs no
// memory and no descriptor, leaves no request behind, and nobody else notices.
#include <gmock/gmock.h>

#include <fstream>
#include <thread>

#include "server/test_observers.h"
#include "server/test_support.h"

namespace vamp {
namespace {

using nlohmann::json;
using testing::AnyOf;
using testing::HasSubstr;

#ifdef VAMP_SANITIZED
constexpr int kDrops = 600;  // memory is the sanitizer's
constexpr size_t kMemoryNoise = SIZE_MAX;
#else
constexpr int kDrops = 10'000;
constexpr size_t kMemoryNoise = 8 << 20;
#endif
constexpr const char* kPaths[] = {"/v1/chat/completions", "/v1/completions", "/v1/responses",
                                  "/v1/messages"};

size_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  size_t total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

std::string endless_request() {
  json body = kChat;
  body["stream"] = body["ignore_eos"] = true;
  body["max_tokens"] = 900;
  return request_text("POST", "/v1/chat/completions", body.dump());
}

ServerOptions hostile_options() {
  ServerOptions options;
  options.http.max_body_bytes = 1 << 20;
  return options;
}

class HostileClients : public testing::Test {
 protected:
  TestServer server_{"Hello", hostile_options(), /*max_num_seqs=*/8};
  const int port_ = server_.port();

  int requests() { return server_.server().service().bridge().requests(); }
  bool nothing_left() {
    return eventually(
        [&] { return server_.server().http().connections() == 0 && requests() == 0; });
  }
  void others_are_served() {
    const HttpReply reply = post(port_, "/v1/chat/completions", kChat);
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.json()["choices"][0]["message"]["content"], "Hello");
  }
  // Some leave with a goodbye, some without.
  static void leave(RawClient& client, int i) { i % 2 == 0 ? client.close_now() : client.reset(); }

  void drop_anywhere(int i) {
    static const std::string chat = endless_request();
    RawClient client(port_);
    switch (i % 4) {
      case 1:
        client.send("POST /v1/chat/comp");
        break;
      case 2:
        client.send(std::string_view(chat).substr(0, chat.size() - 20));  // in its body
        break;
      case 3:
        client.send(chat);
        client.read_until("data: ");
    }
    leave(client, i / 4);
  }

  // While nothing moves: they are queued, or about to be.
  void drop_queued(int count) {
    const std::string chat = endless_request();
    for (int done = 0; done < count; done += 500) {
      server_.controls().hang = true;
      for (int i = 0; i < std::min(500, count - done); ++i) {
        RawClient client(port_);
        client.send(chat);
        leave(client, i);
      }
      EXPECT_TRUE(eventually([&] { return server_.server().http().connections() == 0; }));
      server_.controls().hang = false;
      EXPECT_TRUE(nothing_left());
    }
  }

  void storm(int count) {
    std::atomic<bool> over = false;
    std::thread other([&] {
      do {
        others_are_served();
      } while (!over);
    });
    for (int i = 0; i < count * 4 / 5; ++i) drop_anywhere(i);
    over = true;
    other.join();
    drop_queued(count / 5);
    EXPECT_TRUE(nothing_left());
  }
};

TEST_F(HostileClients, StormsOfDropsLeaveNothingBehind) {
  storm(kDrops / 4);
  const size_t descriptors = open_descriptors(), memory = resident_bytes();
  storm(kDrops);
  EXPECT_EQ(open_descriptors(), descriptors);
  EXPECT_LT(resident_bytes(), memory + std::min(kMemoryNoise, SIZE_MAX - memory));
  others_are_served();
}

TEST_F(HostileClients, AGibibyteIsRefusedAndNotKept) {
  constexpr size_t kGibibyte = 1 << 30, kMost = 32 << 20;
  const std::string piece(0x10000, 'x'), chunk = "10000\r\n" + piece + "\r\n";
  others_are_served();
  const size_t memory = resident_bytes();
  for (const bool chunked : {false, true}) {
    RawClient client(port_);
    client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\n" +
                (chunked ? std::string("Transfer-Encoding: chunked\r\n\r\n")
                         : fmt::format("Content-Length: {}\r\n\r\n", kGibibyte)));
    size_t sent = 0;
    while (!client.readable() && sent < kMost && client.send(chunked ? chunk : piece))
      sent += piece.size();
    EXPECT_EQ(client.read_reply().status, 413);
    while (sent < kGibibyte && client.send(piece)) sent += piece.size();
    EXPECT_LT(sent, kMost);
  }
  EXPECT_TRUE(nothing_left());
  EXPECT_LT(resident_bytes(), memory + std::min(kMemoryNoise, SIZE_MAX - memory));
}

TEST_F(HostileClients, ChunksMustBeChunks) {
  const std::string head =
      "POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n";
  std::string trailers = "\r\n0\r\n";
  for (int i = 0; i < 100'000; ++i) trailers += "X-" + std::to_string(i) + ": y\r\n";
  const std::pair<std::string, int> abuses[] = {
      {"\r\nffffffffffffffff\r\nx", 413},
      {"\r\n10000000000000000\r\nx", 400},
      {"\r\n-1\r\nx", 400},
      {"\r\n\r\nhello", 400},
      {"\r\n5\r\nhello0\r\n\r\n", 400},  // no end of line behind the chunk
      {"\r\n5;" + std::string(200'000, 'e'), 431},
      {trailers, 431},
      {"Content-Length: 5\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 400},  // which of the two?
      {"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", 400},
  };
  for (const auto& [abuse, status] : abuses) {
    SCOPED_TRACE(testing::PrintToString((head + abuse).substr(0, 150)));
    RawClient client(port_);
    client.send(head + abuse);
    EXPECT_EQ(client.read_reply().status, status);
    EXPECT_TRUE(client.closed());
  }
  RawClient twice(port_);
  twice.send(
      "POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 50\r\n\r\nhello");
  EXPECT_EQ(twice.read_reply().status, 400);
  EXPECT_TRUE(nothing_left());
  others_are_served();
}

TEST_F(HostileClients, TextMustBeText) {
  for (const char* path : kPaths) {
    for (const char* bad : {"\xff", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82",
                            R"(\ud800)", R"(\udc00\ud800)", "\x01", R"(\x)"}) {
      const std::string text = std::string("\"a") + bad + "b\"";
      const HttpReply reply =
          call(port_, "POST", path,
               R"({"max_tokens": 1, "prompt": )" + text + R"(, "input": )" + text +
                   R"(, "messages": [{"role": "user", "content": )" + text + "}]}");
      EXPECT_EQ(reply.status, 400) << path << ": " << testing::PrintToString(bad);
      EXPECT_TRUE(reply.json().is_object());
    }
  }
  // Where it may stand anything, it does no harm.
  const HttpReply odd = post(port_, "/v1/chat/completions", kChat,
                             "X-Request-Id: \xff\"}\r\nX-Session-ID: \xfe\r\nUser-Agent: \xc0\r\n");
  EXPECT_EQ(odd.status, 200);
  EXPECT_TRUE(odd.json().is_object());
  const HttpReply nowhere = get(port_, "/\xff\xfe");
  EXPECT_EQ(nowhere.status, 404);
  EXPECT_TRUE(nowhere.json().is_object());
}

TEST_F(HostileClients, DepthIsBounded) {
  constexpr int kDeep = 100'000;
  std::string lists, objects;
  for (int i = 0; i < kDeep; ++i) lists += '[';
  for (int i = 0; i < kDeep; ++i) objects += R"({"a":)";
  for (const char* path : kPaths) {
    for (const std::string& deep : {lists, objects}) {
      for (const char* field : {"messages", "prompt", "input", "tools", "unknown"}) {
        const HttpReply reply =
            call(port_, "POST", path, fmt::format(R"({{"{}": {}1}})", field, deep));
        EXPECT_EQ(reply.status, 400);
        EXPECT_THAT(reply.body, AnyOf(HasSubstr("nested"), HasSubstr("deep")));
      }
    }
  }
}

// JSON inside of JSON: what the body's own depth says nothing of.
TEST_F(HostileClients, DepthOfToolArgumentsIsBounded) {
  std::string deep = R"({"a":)";
  deep.append(200'000, '[');
  deep.append(200'000, ']');
  deep += '}';
  json body = kChat;
  body["messages"].push_back(
      {{"role", "assistant"},
       {"tool_calls", {{{"function", {{"name", "f"}, {"arguments", deep}}}}}}});
  body["messages"].push_back(kChat["messages"][0]);
  EXPECT_EQ(post(port_, "/v1/chat/completions", body).status, 200);
}

TEST_F(HostileClients, HalfClosedConnectionsEnd) {
  const std::string chat = endless_request();
  for (const size_t sent : {size_t{0}, size_t{20}, chat.size() - 10, chat.size()}) {
    RawClient client(port_);
    client.send(std::string_view(chat).substr(0, sent));
    if (sent == chat.size()) client.read_until("data: ");
    client.end_sending();
    EXPECT_TRUE(nothing_left()) << sent;
  }
}

TEST(SilentClients, AreClosedInTheEnd) {
  ServerOptions options;
  options.http.idle_seconds = 0.3;
  TestServer server("Hello", options);
  RawClient silent(server.port()), once(server.port());
  once.send(request_text("GET", "/health"));
  EXPECT_EQ(once.read_reply().status, 200);
  EXPECT_TRUE(silent.closed());
  EXPECT_TRUE(once.closed());
}

class SlowReaders : public testing::Test {
 protected:
  // Far more than the kernel holds for a client, in long events.
  static std::string long_stream() {
    json body = kChat;
    body["stream"] = body["logprobs"] = body["ignore_eos"] = true;
    body["top_logprobs"] = 2;
    body["max_tokens"] = 900;
    body["n"] = 16;
    return request_text("POST", "/v1/chat/completions", body.dump());
  }

  void expect_cut_off(const ServerOptions& options, const std::string& why) {
    LogCapture log;
    TestServer server(std::string(200, 'x'), options);
    RawClient slow(server.port(), /*receive_buffer=*/4096);
    slow.send(long_stream());
    slow.read_until("data: ");
    EXPECT_EQ(post(server.port(), "/v1/chat/completions", kChat).status, 200);
    EXPECT_TRUE(eventually([&] { return server.server().http().connections() == 0; }));
    EXPECT_EQ(server.server().service().bridge().requests(), 0);
    EXPECT_THAT(log.text(), HasSubstr("the client at 127.0.0.1 is cut off: " + why));
  }
};

TEST_F(SlowReaders, AreCutOffWhenTheyTakeNothing) {
  ServerOptions options;
  options.http.write_seconds = 0.5;
  expect_cut_off(options, "it took nothing of its answer for 0.5 s, --write-timeout");
}

TEST_F(SlowReaders, AreCutOffWhenTooMuchWaitsForThem) {
  ServerOptions options;
  options.max_stream_backlog_bytes = 64 << 10;
  expect_cut_off(options, "6");  // and some KiB
}

// A client that was slow for a while gets all that waited for it.
TEST_F(SlowReaders, MayCatchUp) {
  TestServer server(std::string(200, 'x'));
  RawClient slow(server.port(), /*receive_buffer=*/4096);
  slow.send(long_stream());
  auto& bridge = server.server().service().bridge();
  ASSERT_TRUE(eventually([&] { return bridge.requests() == 16; }));
  ASSERT_TRUE(eventually([&] { return bridge.requests() == 0; }));  // nothing was read so far
  const std::vector<json> events = events_of(slow.read_reply().body);
  size_t tokens = 0;
  for (const json& event : events) {
    for (const json& choice : event.is_object() ? event["choices"] : json::array()) {
      if (choice["logprobs"].is_object()) tokens += choice["logprobs"]["content"].size();
    }
  }
  EXPECT_EQ(tokens, 16u * 900u);
  EXPECT_EQ(events.back(), "[DONE]");
}

}  // namespace
}  // namespace vamp
