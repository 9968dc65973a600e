// Faults of the engine: requests end with the reason, /health says it, nobody waits for ever, and
// the server can be stopped.
#include <gmock/gmock.h>

#include "base/error.h"
#include "server/test_support.h"

namespace vamp {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

constexpr const char* kReason = "the test lets the engine fail";

std::string endless(const std::string& path, bool stream) {
  json body = kChat;
  body["prompt"] = body["input"] = "Hi";
  body["stream"] = stream;
  body["ignore_eos"] = true;
  body["max_tokens"] = 900;
  return request_text("POST", path, body.dump());
}

// Requests of every kind under way, one of them waiting; then `fault` is let loose.
class EngineFaults : public testing::Test {
 protected:
  void expect_all_fail(const std::function<void(TestServer&)>& fault, const std::string& reason) {
    ServerOptions options;
    options.stall_seconds = 0.5;
    TestServer server(std::string(900, 'a'), options, /*max_num_seqs=*/4);
    server.controls().step_time = 5000;
    const auto requests = [&] { return server.server().service().bridge().requests(); };
    std::vector<std::unique_ptr<RawClient>> streams, whole;
    const auto add = [&](std::vector<std::unique_ptr<RawClient>>& list, const char* path) {
      const int before = requests();
      list.push_back(std::make_unique<RawClient>(server.port()));
      list.back()->send(endless(path, &list == &streams));
      ASSERT_TRUE(eventually([&] { return requests() == before + 1; }));
    };
    for (const char* path : {"/v1/chat/completions", "/v1/completions", "/v1/messages"}) {
      add(streams, path);
      streams.back()->read_until("data: ");
    }
    add(whole, "/v1/responses");
    add(whole, "/v1/chat/completions");  // this one waits
    fault(server);
    for (auto& client : streams)
      EXPECT_THAT(client->read_until("\r\n0\r\n\r\n"),
                  AllOf(HasSubstr("error"), HasSubstr(reason)));
    for (auto& client : whole) {
      const HttpReply reply = client->read_reply();
      EXPECT_EQ(reply.status, 500);
      EXPECT_THAT(reply.body, HasSubstr(reason));
    }
    EXPECT_EQ(requests(), 0);
    for (const char* path : {"/health", "/ping"}) {
      const HttpReply health = get(server.port(), path);
      EXPECT_EQ(health.status, 503);
      EXPECT_THAT(health.body, HasSubstr(reason));
    }
    const HttpReply late = post(server.port(), "/v1/chat/completions", kChat);
    EXPECT_EQ(late.status, 500);
    EXPECT_THAT(late.body, HasSubstr(reason));
    EXPECT_EQ(get(server.port(), "/metrics").status, 200);
    server.server().shut_down([] { return false; });
    server.controls().hang = false;  // so that the thread can be joined
  }
};

TEST_F(EngineFaults, AStepThatThrows) {
  expect_all_fail(
      [](TestServer& server) { server.controls().before_step([] { throw Error(kReason); }); },
      kReason);
}

TEST_F(EngineFaults, AResultThatThrows) {
  expect_all_fail(
      [](TestServer& server) {
        server.controls().before_result([] { throw InvariantError(kReason); });
      },
      kReason);
}

TEST_F(EngineFaults, OutOfMemory) {
  expect_all_fail(
      [](TestServer& server) { server.controls().before_step([] { throw std::bad_alloc(); }); },
      "the engine has stopped: out of memory");
}

TEST_F(EngineFaults, AStepThatHangs) {
  expect_all_fail([](TestServer& server) { server.controls().hang = true; },
                  "no progress for 0.5 s");
}

TEST_F(EngineFaults, StepsThatAreLostForEver) {
  expect_all_fail([](TestServer& server) { server.controls().lose = true; },
                  "no progress for 0.5 s");
}

TEST(EngineFault, StepsThatAreLostForAWhileAreDoneAgain) {
  TestServer server(std::string(100, 'a'));
  server.controls().step_time = 2000;
  json body = kChat;
  body["stream"] = true;
  RawClient client(server.port());
  client.send(request_text("POST", "/v1/chat/completions", body.dump()));
  ASSERT_TRUE(eventually([&] { return server.controls().steps > 5; }));
  server.controls().lose = true;
  const uint64_t before = server.controls().steps;
  usleep(20'000);
  server.controls().lose = false;
  const std::vector<json> events = events_of(client.read_reply().body);
  std::string text;
  for (const json& event : events) {
    if (event.is_object()) text += event["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(text, std::string(100, 'a'));
  EXPECT_GT(server.controls().steps, before);
}

}  // namespace
}  // namespace vamp
