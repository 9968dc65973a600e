// Spans as a collector gets them.
#include "server/span_exporter.h"

#include <gmock/gmock.h>

#include <thread>

#include "base/error.h"
#include "server/test_observers.h"
#include "server/test_support.h"

namespace vamp {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// A port that takes connections. Nobody answers by itself.
class Listener {
 public:
  Listener() : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(socket_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(socket_, 16), 0);
    getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~Listener() { close(socket_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  std::string url() const { return "http://127.0.0.1:" + std::to_string(port_); }
  int accept_next() { return accept(socket_, nullptr, nullptr); }  // negative: shut down
  void shut_down() { shutdown(socket_, SHUT_RDWR); }

 private:
  int socket_, port_ = 0;
};

// Takes OTLP's requests, one after the other, and answers with `status`.
class Collector {
 public:
  explicit Collector(int status = 200) : status_(status), thread_([this] { run(); }) {}
  ~Collector() {
    listener_.shut_down();
    thread_.join();
  }

  std::string url() const { return listener_.url(); }
  int requests() const { return requests_; }

  // Once there are `count`; fewer after ten seconds.
  std::vector<json> spans(size_t count) {
    eventually([&] {
      const std::lock_guard lock(mutex_);
      return spans_.size() >= count;
    });
    const std::lock_guard lock(mutex_);
    return spans_;
  }

 private:
  void run() {
    for (int client; (client = listener_.accept_next()) >= 0; close(client)) {
      std::string text;
      char chunk[65536];
      size_t head = std::string::npos;
      for (ssize_t got; (got = recv(client, chunk, sizeof chunk, 0)) > 0;) {
        text.append(chunk, static_cast<size_t>(got));
        head = text.find("\r\n\r\n");
        const size_t length = text.find("Content-Length: ");
        if (head != std::string::npos && length != std::string::npos &&
            text.size() - head - 4 >= std::stoul(text.substr(length + 16)))
          break;
      }
      take(text, head);
      const std::string answer =
          fmt::format("HTTP/1.1 {} X\r\nContent-Length: 2\r\n\r\n{{}}", status_);
      EXPECT_EQ(send(client, answer.data(), answer.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(answer.size()));
    }
  }

  void take(const std::string& text, size_t head) {
    EXPECT_THAT(text.substr(0, head), AllOf(HasSubstr("POST /v1/traces HTTP/1.1\r\n"),
                                            HasSubstr("Content-Type: application/json")));
    const json body = json::parse(text.substr(head + 4));
    const json& resource = body.at("resourceSpans").at(0);
    EXPECT_EQ(resource["resource"]["attributes"][0]["value"]["stringValue"], "vamp");
    const std::lock_guard lock(mutex_);
    for (const json& span : resource["scopeSpans"].at(0)["spans"]) spans_.push_back(span);
    ++requests_;
  }

  const int status_;
  Listener listener_;
  std::atomic<int> requests_ = 0;
  std::mutex mutex_;
  std::vector<json> spans_;
  std::thread thread_;
};

ServerOptions exporting_to(const std::string& url) {
  ServerOptions options;
  options.otlp_traces_endpoint = url;
  return options;
}

// By key, as JSON's own types.
std::map<std::string, json> attributes_of(const json& span) {
  std::map<std::string, json> out;
  for (const json& attribute : span["attributes"]) {
    const json& value = attribute["value"];
    EXPECT_EQ(value.size(), 1u);
    out[attribute["key"]] = value.contains("intValue")
                                ? json(std::stoll(value["intValue"].get<std::string>()))
                                : *value.begin();
  }
  return out;
}

TEST(Spans, SayWhatARequestWas) {
  Collector collector;
  TestServer server("Hello there", exporting_to(collector.url()));
  server.controls().step_time = 2000;
  json body = kChat;
  body["max_tokens"] = 20;
  body["temperature"] = 0.5;
  body["n"] = 2;
  const HttpReply reply =
      post(server.port(), "/v1/chat/completions", body,
           "X-Request-Id: abc\r\n"
           "traceparent: 00-0123456789abcdef0123456789abcdef-00f067aa0ba902b7-01\r\n");
  ASSERT_EQ(reply.status, 200);
  const std::vector<json> spans = collector.spans(1);
  ASSERT_EQ(spans.size(), 1u);
  const json& span = spans[0];
  EXPECT_EQ(span["name"], "llm_request");
  EXPECT_EQ(span["kind"], 2);
  EXPECT_EQ(span["traceId"], "0123456789abcdef0123456789abcdef");
  EXPECT_EQ(span["parentSpanId"], "00f067aa0ba902b7");
  EXPECT_EQ(
      reply.headers.at("traceparent"),
      fmt::format("00-0123456789abcdef0123456789abcdef-{}-01", span["spanId"].get<std::string>()));
  const double start = std::stod(span["startTimeUnixNano"].get<std::string>()) / 1e9,
               end = std::stod(span["endTimeUnixNano"].get<std::string>()) / 1e9;
  EXPECT_LT(start, end);
  EXPECT_NEAR(end, static_cast<double>(std::time(nullptr)), 60);
  EXPECT_EQ(span["status"], json::object());
  auto attributes = attributes_of(span);
  EXPECT_EQ(attributes["gen_ai.request.id"], "chatcmpl-abc");
  EXPECT_EQ(attributes["gen_ai.response.model"], "test-model");
  EXPECT_EQ(attributes["gen_ai.request.max_tokens"], 20);
  EXPECT_EQ(attributes["gen_ai.request.temperature"], 0.5);
  EXPECT_EQ(attributes["gen_ai.request.n"], 2);
  EXPECT_EQ(attributes["gen_ai.usage.prompt_tokens"], reply.json()["usage"]["prompt_tokens"]);
  EXPECT_EQ(attributes["gen_ai.usage.completion_tokens"],
            reply.json()["usage"]["completion_tokens"]);
  EXPECT_GE(attributes["gen_ai.latency.time_in_queue"], 0.0);
  EXPECT_GT(attributes["gen_ai.latency.time_to_first_token"],
            attributes["gen_ai.latency.time_in_queue"]);
  EXPECT_GT(attributes["gen_ai.latency.e2e"], attributes["gen_ai.latency.time_to_first_token"]);
}

TEST(Spans, AreOfEveryApiAndOfTheTracesThatAreSampled) {
  Collector collector;
  TestServer server("Hello", exporting_to(collector.url()));
  json body = kChat;
  body["prompt"] = body["input"] = "Hi";
  body["max_tokens"] = 8;
  for (const bool stream : {false, true}) {
    body["stream"] = stream;
    for (const char* path :
         {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"}) {
      EXPECT_EQ(post(server.port(), path, body,
                     "traceparent: 00-0123456789abcdef0123456789abcdef-00f067aa0ba902b7-00\r\n")
                    .status,
                200);
      EXPECT_EQ(post(server.port(), path, body).status, 200);
    }
  }
  std::set<std::string> traces, ids;
  for (const json& span : collector.spans(8)) {
    EXPECT_FALSE(span.contains("parentSpanId"));
    traces.insert(span["traceId"]);
    ids.insert(attributes_of(span)["gen_ai.request.id"]);
  }
  EXPECT_EQ(traces.size(), 8u);
  EXPECT_EQ(ids.size(), 8u);
  EXPECT_LE(collector.requests(), 8);
}

TEST(Spans, SayHowARequestFailed) {
  Collector collector;
  TestServer server("Hello", exporting_to(collector.url()));
  server.controls().step_time = 5000;
  json body = kChat;
  body["ignore_eos"] = body["stream"] = true;
  body["max_tokens"] = 900;
  const std::string text = request_text("POST", "/v1/chat/completions", body.dump());
  {
    RawClient leaving(server.port());
    leaving.send(text);
    leaving.read_until("data: ");
  }
  EXPECT_EQ(collector.spans(1).at(0)["status"]["message"], "the client has gone");
  RawClient client(server.port());
  client.send(text);
  client.read_until("data: ");
  server.controls().before_step([] { throw Error("the test lets this step fail"); });
  const json failed = collector.spans(2).at(1);
  EXPECT_EQ(failed["status"]["code"], 2);
  EXPECT_THAT(failed["status"]["message"].get<std::string>(), HasSubstr("lets this step fail"));
}

TEST(Spans, ThatNobodyTakesHoldNobodyUp) {
  LogCapture log;
  std::string gone;
  {
    const Collector none;
    gone = none.url();
  }
  Collector refusing(503);
  for (const std::string& url : {gone, refusing.url()}) {
    TestServer server("Hello", exporting_to(url));
    for (int i = 0; i < 100; ++i)
      EXPECT_EQ(post(server.port(), "/v1/chat/completions", kChat).status, 200);
  }
  EXPECT_THAT(log.text(), AllOf(HasSubstr("--otlp-traces-endpoint: spans are lost: HTTP 503"),
                                HasSubstr("100 spans were lost in all")));
}

TEST(Spans, BeyondTheQueueAreLostAndCounted) {
  LogCapture log;
  const Listener silent;
  {
    SpanExporter exporter(silent.url());
    for (int i = 0; i < 20'000; ++i) exporter.add({});
  }
  EXPECT_THAT(log.text(), HasSubstr("20000 spans were lost in all"));
}

TEST(Spans, NeedAUrlThatCanBe) {
  for (const char* bad : {"localhost:4318", "grpc://localhost:4317", "https://localhost", "http://",
                          "http://:4318", "http://host:", "http://host:99999", "http://host:x"}) {
    EXPECT_THROW(SpanExporter{bad}, Error) << bad;
  }
  for (const char* good : {"http://localhost", "http://[::1]:4318/", "http://h:1/a/b"})
    SpanExporter{good};
}

}  // namespace
}  // namespace vamp
