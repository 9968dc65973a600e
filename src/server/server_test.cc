// The server's life: keys, queue, failures of the engine, loading, shutting down.
#include "server/server.h"

#include <gmock/gmock.h>

#include <thread>

#include "base/error.h"
#include "server/auth.h"
#include "server/test_support.h"

namespace vamp {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json endless_chat() {
  json body = kChat;
  body["ignore_eos"] = true;
  body["max_tokens"] = 900;
  body["stream"] = true;
  return body;
}

std::string bearer(const std::string& key) {
  return "Authorization: Bearer " + key + "\r\n";
}

TEST(ServerKeys, AreNeededAndSeparateTenants) {
  ServerOptions options;
  options.api_keys = {"alpha", "beta"};
  TestServer server("Hello", options);
  EXPECT_EQ(post(server.port(), "/v1/chat/completions", kChat).status, 401);
  EXPECT_EQ(post(server.port(), "/v1/chat/completions", kChat, bearer("gamma")).status, 401);
  EXPECT_EQ(get(server.port(), "/v1/models", "x-api-key: beta\r\n").status, 200);
  EXPECT_EQ(get(server.port(), "/health").status, 200);

  // Long enough for full blocks.
  json body = kChat;
  body["messages"][0]["content"] = std::string(300, 'y');
  const auto cached = [&](const std::string& key) {
    const json reply = post(server.port(), "/v1/chat/completions", body, bearer(key)).json();
    return reply["usage"]["prompt_tokens_details"]["cached_tokens"].get<int>();
  };
  EXPECT_EQ(cached("alpha"), 0);
  EXPECT_GT(cached("alpha"), 0);
  EXPECT_EQ(cached("beta"), 0);  // another tenant's prefix is not to be had
  EXPECT_GT(cached("beta"), 0);
}

TEST(ServerKeys, ARefusedRequestLeavesTheConnectionUsable) {
  ServerOptions options;
  options.api_keys = {"alpha"};
  TestServer server("Hello", options);
  RawClient client(server.port());
  for (int i = 0; i < 200; ++i) {
    client.send(request_text("GET", "/v1/models"));
    ASSERT_EQ(client.read_reply().status, 401) << i;
  }
  client.send(request_text("GET", "/v1/models", "", bearer("alpha")));
  EXPECT_EQ(client.read_reply().status, 200);
}

// `--api-key "$UNSET"`: what nobody brings must not be what everybody brings.
TEST(ServerKeys, AnEmptyKeyIsRefused) {
  for (const char* key : {"", " ", "key "}) EXPECT_THROW(KeyRing({"alpha", key}), Error) << key;
}

TEST(ServerQueue, BeyondItsLengthIsTold) {
  ServerOptions options;
  options.max_waiting_requests = 2;
  TestServer server("Hello", options, /*max_num_seqs=*/1);
  server.controls().step_time = 20'000;
  std::vector<std::unique_ptr<RawClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_unique<RawClient>(server.port()));
    clients.back()->send(request_text("POST", "/v1/chat/completions", endless_chat().dump()));
    ASSERT_TRUE(eventually([&] { return server.server().service().bridge().requests() == i + 1; }));
    if (i == 0) clients.back()->read_until("data: ");  // it runs
  }
  const HttpReply reply = post(server.port(), "/v1/chat/completions", kChat);
  EXPECT_EQ(reply.status, 503);
  EXPECT_EQ(reply.headers.at("retry-after"), "1");
  EXPECT_THAT(get(server.port(), "/metrics").body,
              HasSubstr("vllm:num_requests_waiting{engine=\"0\",model_name=\"test-model\"} 2"));
  // Those that leave while they wait make room.
  clients.pop_back();
  EXPECT_TRUE(eventually([&] { return server.server().service().bridge().requests() == 2; }));
}

TEST(ServerFailure, AnEngineThatThrowsFailsItsRequestsAndHealth) {
  TestServer server;
  server.controls().step_time = 5000;
  RawClient streaming(server.port());
  streaming.send(request_text("POST", "/v1/chat/completions", endless_chat().dump()));
  streaming.read_until("data: ");
  server.controls().before_step([] { throw Error("the test lets this step fail"); });
  const std::string rest = streaming.read_until("[DONE]");
  EXPECT_THAT(rest, HasSubstr("\"error\""));
  EXPECT_THAT(rest, HasSubstr("the test lets this step fail"));
  ASSERT_TRUE(eventually([&] { return get(server.port(), "/health").status == 503; }));
  const HttpReply reply = post(server.port(), "/v1/chat/completions", kChat);
  EXPECT_EQ(reply.status, 500);
  EXPECT_THAT(reply.json()["error"]["message"].get<std::string>(), HasSubstr("engine has stopped"));
}

TEST(ServerFailure, AStuckEngineIsNoticed) {
  ServerOptions options;
  options.stall_seconds = 0.3;
  TestServer server("Hello", options);
  server.controls().hang = true;
  const HttpReply reply = post(server.port(), "/v1/chat/completions", kChat);
  EXPECT_EQ(reply.status, 500);
  EXPECT_THAT(reply.body, HasSubstr("no progress"));
  EXPECT_EQ(get(server.port(), "/health").status, 503);
  server.controls().hang = false;  // so that the thread can be joined
}

ServerOptions any_port() {
  ServerOptions options;
  options.http.port = 0;
  options.served_names = {"m"};
  return options;
}

// Loads until `go`, then fails.
ServingParts load_in_vain(const std::atomic<bool>& go, const char* fault) {
  while (!go) usleep(1000);
  throw Error("{}", fault);
}

TEST(ServerLoading, ThePortAnswersBeforeTheModelIsThere) {
  std::atomic<bool> go = false;
  Server server(any_port(), [&] { return load_in_vain(go, "model.safetensors: broken"); });
  EXPECT_EQ(get(server.port(), "/health").status, 503);
  const HttpReply early = post(server.port(), "/v1/chat/completions", kChat);
  EXPECT_EQ(early.status, 503);
  EXPECT_THAT(early.body, HasSubstr("being loaded"));
  EXPECT_EQ(get(server.port(), "/metrics").status, 200);
  go = true;
  EXPECT_FALSE(server.wait_until_loaded());
  EXPECT_EQ(server.service().unready_reason(), "model.safetensors: broken");
}

TEST(ServerLoading, WhoWaitsForTheModelMayGiveUp) {
  std::atomic<bool> go = false;
  Server server(any_port(), [&] { return load_in_vain(go, "too late"); });
  EXPECT_FALSE(server.wait_until_loaded([] { return true; }));
  EXPECT_EQ(server.service().state(), Service::State::kLoading);
  go = true;
}

TEST(ServerShutdown, WaitsForWhatIsUnderWay) {
  TestServer server(std::string(60, 'a'));
  server.controls().step_time = 2000;
  RawClient client(server.port()), idle(server.port());
  json body = kChat;
  body["stream"] = true;
  client.send(request_text("POST", "/v1/chat/completions", body.dump()));
  client.read_until("data: ");
  server.server().shut_down([] { return false; });
  EXPECT_TRUE(idle.closed());
  EXPECT_THAT(client.read_until("[DONE]"), HasSubstr("\"finish_reason\":\"stop\""));
}

TEST(ServerShutdown, EndsWithAnErrorWhatTakesTooLong) {
  ServerOptions options;
  options.drain_seconds = 0.2;
  TestServer server("Hello", options);
  server.controls().step_time = 20'000;
  RawClient client(server.port());
  client.send(request_text("POST", "/v1/chat/completions", endless_chat().dump()));
  client.read_until("data: ");
  server.server().shut_down([] { return false; });
  EXPECT_THAT(client.read_until("[DONE]"), HasSubstr("the server is shutting down"));
}

TEST(ServerHints, SessionsAreOneHoweverTheyAreNamed) {
  TestServer server;
  const auto salted = [&](const std::string& headers, const json& extra) {
    json body = kChat;
    body.update(extra);
    EXPECT_EQ(post(server.port(), "/v1/chat/completions", body, headers).status, 200);
  };
  // Hostile values are a 400 or change nothing.
  salted("X-Session-ID: abc\r\n", json::object());
  salted("", {{"prompt_cache_key", "abc"}, {"prompt_cache_retention", "24h"}});
  salted("", {{"agent_hint", {{"session", "abc"}, {"release", true}}}});
  EXPECT_EQ(post(server.port(), "/v1/chat/completions",
                 {{"messages", kChat["messages"]}, {"prompt_cache_key", 7}})
                .status,
            400);
}

}  // namespace
}  // namespace vamp
