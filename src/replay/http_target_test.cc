// A trace against a server that says what the test tells it to.
#include "replay/http_target.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>

#include "replay/replay_driver.h"

namespace vamp {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using testing::ElementsAre;
using testing::HasSubstr;
using Request = http::request<http::string_body>;

// On a free port; one request after the other. An empty answer leaves the connection open and
// silent until the end.
class FakeServer {
 public:
  using Answer = std::function<std::string(const Request&)>;

  explicit FakeServer(Answer answer) : answer_(std::move(answer)), thread_([this] { serve(); }) {}
  ~FakeServer() {
    stopping_ = true;
    tcp::socket(io_).connect(acceptor_.local_endpoint());  // wakes accept()
    thread_.join();
  }
  ServerUrl url() const {
    return parse_server_url(fmt::format("http://127.0.0.1:{}", acceptor_.local_endpoint().port()));
  }

 private:
  using tcp = asio::ip::tcp;

  void serve() {
    while (true) {
      tcp::socket socket = acceptor_.accept();
      if (stopping_) return;
      boost::beast::flat_buffer buffer;
      Request request;
      boost::system::error_code error;
      http::read(socket, buffer, request, error);
      const std::string text = error ? "" : answer_(request);
      asio::write(socket, asio::buffer(text), error);
      if (text.empty()) silent_.push_back(std::move(socket));
    }
  }

  const Answer answer_;
  asio::io_context io_;
  tcp::acceptor acceptor_{io_, {asio::ip::make_address("127.0.0.1"), 0}};
  std::atomic<bool> stopping_ = false;
  std::vector<tcp::socket> silent_;
  std::thread thread_;
};

std::string reply(int status, const std::string& body) {
  return fmt::format("HTTP/1.1 {} Said\r\nContent-Length: {}\r\n\r\n{}", status, body.size(), body);
}
std::string chunk(const std::string& body) {
  return fmt::format("{:x}\r\n{}\r\n", body.size(), body);
}
constexpr const char* kStreamHead = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

// Both tokens of an answer, the prompt's length as it came, all but 100 of it cached.
std::string whole_answer(const Request& request) {
  const auto prompt = nlohmann::json::parse(request.body())["prompt"].size();
  return kStreamHead + chunk("data: {\"choices\":[{\"text\":\"a\",\"token_ids\":[5]}]}\n\n") +
         chunk(fmt::format(
             "data: {{\"choices\":[{{\"text\":\"b\",\"token_ids\":[6],\"finish_reason\":"
             "\"length\"}}],\"usage\":{{\"prompt_tokens\":{},\"completion_tokens\":2,"
             "\"prompt_tokens_details\":{{\"cached_tokens\":{}}}}}}}\n\n",
             prompt, prompt - 100)) +
         chunk("data: [DONE]\n\n") + "0\r\n\r\n";
}

// Three sessions of three turns against `answer`, which is told the request and how many came
// before it.
class HttpTargetTest : public testing::Test {
 protected:
  using Numbered = std::function<std::string(const Request&, int)>;

  ReplayResult run(const Numbered& answer, Micros silence = 60 * kSecond,
                   const PromptBuilder::Encode& encode = nullptr) {
    const Trace trace = make_sweep({.sessions = 3,
                                    .turns = 3,
                                    .kv_bytes_per_session = 600,
                                    .kv_bytes_per_token = 1,
                                    .output_tokens = 2});
    FakeServer server([this, &answer](const Request& request) {
      if (request.target() == "/v1/models") return reply(200, R"({"data":[{"id":"moe"}]})");
      requests_.push_back(request);
      return answer(request, static_cast<int>(requests_.size()) - 1);
    });
    PromptOptions options;
    options.vocab_size = 500;
    const PromptBuilder prompts(trace, options, nullptr);
    ReplayOptions replay;
    replay.sessions = 1;  // so that the order is known
    replay.think_time = 0;
    ReplayDriver driver(trace, prompts, replay);
    driver.stop_requested = [this] { return stop_ && stop_(); };
    RealClock clock;
    RemoteServer found = find_server(server.url(), "", "secret", 60 * kSecond);
    found.silence = silence;
    HttpTarget target(found, encode, clock, driver);
    ReplayResult result = driver.run(target, clock);
    cached_told_ = target.cached_tokens_told();
    return result;
  }

  static std::vector<std::string> errors(const ReplayResult& result) {
    std::vector<std::string> out;
    for (const TurnRecord& turn : result.record.turns) out.push_back(turn.error);
    return out;
  }

  std::vector<Request> requests_;
  std::function<bool()> stop_;
  bool cached_told_ = false;
};

TEST_F(HttpTargetTest, AWholeTrace) {
  const ReplayResult result =
      run([](const Request& request, int) { return whole_answer(request); });
  ASSERT_EQ(result.record.turns.size(), 9u);
  for (const TurnRecord& turn : result.record.turns) {
    EXPECT_TRUE(turn.answered()) << turn.error;
    EXPECT_EQ(turn.stats.output_tokens, 2);
    EXPECT_EQ(turn.stats.cached_tokens, turn.stats.prompt_tokens - 100);
    EXPECT_GE(turn.ttft(), 0);
    EXPECT_GE(turn.tpot(), 0);
    EXPECT_TRUE(std::isnan(turn.stats.queued));
  }
  EXPECT_THAT(result.answers[2][2], ElementsAre(5, 6));
  EXPECT_TRUE(cached_told_);
  const Request& first = requests_.front();
  EXPECT_EQ(first.target(), "/v1/completions");
  EXPECT_EQ(first["Authorization"], "Bearer secret");
  EXPECT_EQ(first["X-Session-ID"], "vamp-replay-1");
  auto body = nlohmann::json::parse(first.body());
  EXPECT_EQ(body["prompt"].size(), static_cast<size_t>(result.record.turns[0].stats.prompt_tokens));
  body.erase("prompt");
  EXPECT_EQ(body, nlohmann::json::parse(R"({"model":"moe","max_tokens":2,"min_tokens":2,
      "ignore_eos":true,"temperature":0.0,"stream":true,"stream_options":{"include_usage":true},
      "return_token_ids":true})"));
}

// The session of a turn that failed ends there; the others go on.
TEST_F(HttpTargetTest, AFaultEndsItsSessionAlone) {
  const std::string begun =
      kStreamHead + chunk("data: {\"choices\":[{\"text\":\"a\",\"token_ids\":[5]}]}\n\n");
  const ReplayResult result = run([&begun](const Request& request, int number) {
    if (number == 1) return reply(503, R"({"error":{"message":"the queue is full"}})");
    if (number == 3) return begun + "ff\r\ndata: {";
    return whole_answer(request);
  });
  EXPECT_THAT(
      errors(result),
      ElementsAre("", "HTTP 503: the queue is full", "",
                  "in the middle of the answer: the server closed the connection", "", "", ""));
  EXPECT_TRUE(result.answers[0][1].empty());
}

TEST_F(HttpTargetTest, AnAnswerMustBeWhole) {
  const std::string begun =
      kStreamHead + chunk("data: {\"choices\":[{\"text\":\"a\",\"token_ids\":[5]}]}\n\n");
  const ReplayResult result = run([&begun](const Request&, int number) {
    if (number == 0) return begun + "0\r\n\r\n";
    if (number == 1)
      return begun + chunk("data: {\"error\":{\"message\":\"the step failed\"}}\n\n") + "0\r\n\r\n";
    return reply(200, "");
  });
  EXPECT_THAT(errors(result),
              ElementsAre("the stream ended before the answer did", "the step failed",
                          "the stream ended before the answer did"));
}

TEST_F(HttpTargetTest, ASilentServerIsGivenUp) {
  const ReplayResult result = run([](const Request&, int) { return ""; }, 0.1 * kSecond);
  const auto silent = HasSubstr("the server said nothing for 0.1 s");
  EXPECT_THAT(errors(result), ElementsAre(silent, silent, silent));
}

TEST_F(HttpTargetTest, AnInterruptDoesNotWaitForTheServer) {
  int asked = 0;
  stop_ = [&asked] { return ++asked > 3; };
  const ReplayResult result = run([](const Request&, int) { return ""; });
  EXPECT_TRUE(result.interrupted);
  EXPECT_TRUE(result.record.turns.empty());
}

// Such a server sends a token an event, in what can be known from here.
TEST_F(HttpTargetTest, AServerThatTellsTextAlone) {
  const ReplayResult result = run(
      [](const Request&, int) {
        return reply(200,
                     "data: {\"choices\":[{\"text\":\"a\"}]}\n\n"
                     "data: {\"choices\":[{\"text\":\"b\",\"finish_reason\":\"length\"}]}\n\n");
      },
      60 * kSecond,
      [](std::string_view text) { return std::vector<TokenId>(text.begin(), text.end()); });
  EXPECT_THAT(errors(result), testing::Each(""));
  EXPECT_EQ(result.record.turns.size(), 9u);
  EXPECT_EQ(result.record.turns[0].stats.output_tokens, 2);
  EXPECT_GT(result.record.turns[0].stats.prompt_tokens, 100);
  EXPECT_THAT(result.answers[0][0], ElementsAre('a', 'b'));
  EXPECT_FALSE(cached_told_);
}

std::string search_fault(const ServerUrl& url, const std::string& model = "") {
  try {
    find_server(url, model, "", 60 * kSecond);
  } catch (const Error& error) {
    return error.what();
  }
  return "no fault";
}

TEST(FindServer, FaultsNameTheUrl) {
  int status = 200;
  std::string body = R"({"data":[]})";
  std::optional<FakeServer> server;
  server.emplace([&](const Request&) { return reply(status, body); });
  const ServerUrl url = server->url();
  EXPECT_EQ(search_fault(url), "--url " + url.text +
                                   ": /v1/models: no model is named; name it with "
                                   "--served-model-name");
  EXPECT_EQ(search_fault(url, "moe"), "no fault");
  status = 404;
  EXPECT_THAT(search_fault(url), HasSubstr("HTTP 404"));
  EXPECT_EQ(search_fault(url, "moe"), "no fault");
  status = 401;
  body = "wrong key";
  EXPECT_THAT(search_fault(url, "moe"), HasSubstr("HTTP 401: wrong key; set the environment's"));
  server.reset();
  EXPECT_EQ(search_fault(url),
            "--url " + url.text + ": /v1/models: cannot connect: Connection refused");
}

}  // namespace
}  // namespace vamp
