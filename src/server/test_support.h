// For tests: a server whose model says what it is told, and a plain client.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/random.h"
#include "core/make_policy.h"
#include "server/server.h"

namespace vamp {

// Every request is answered with one text, a token a step, and then the end token. Where its
// constraint forbids that token, any other that is allowed takes its place. Thread: the engine's;
// `controls` from any.
class SpeakingExecutor final : public Executor {
 public:
  struct Controls {
    std::atomic<bool> hang = false;  // steps do not end while it is set
    std::atomic<bool> lose = false;  // steps are not carried out while it is set
    std::atomic<Micros> step_time = 200;
    std::atomic<int> running = 0;  // requests in the last step's batch
    std::atomic<uint64_t> steps = 0;
    // What the last request to start was like.
    std::mutex mutex;
    StartRequest last_start;

    // Run by the engine's thread: may throw.
    void before_step(std::function<void()> hook) { set(before_step_, std::move(hook)); }
    void before_result(std::function<void()> hook) { set(before_result_, std::move(hook)); }

   private:
    friend SpeakingExecutor;
    using Hook = std::function<void()>;
    void set(Hook& hook, Hook value) {
      const std::lock_guard lock(mutex);
      hook = std::move(value);
    }
    void call(const Hook& hook) {
      std::unique_lock lock(mutex);
      if (const Hook copy = hook) {
        lock.unlock();
        copy();
      }
    }
    Hook before_step_, before_result_;
  };

  SpeakingExecutor(std::vector<TokenId> answer, int vocab_size, Clock& clock,
                   std::shared_ptr<Controls> controls)
      : answer_(std::move(answer)),
        vocab_size_(vocab_size),
        clock_(clock),
        controls_(std::move(controls)) {}

  void submit(StepPlan plan) override {
    controls_->call(controls_->before_step_);
    StepResult result;
    result.step = plan.step;
    if (plan.reset) {
      rows_.clear();
      lost_ = false;
    }
    lost_ = lost_ || controls_->lose;
    if (lost_) {
      result.executed = false;
      result.failure = "the test loses this step";
      end_after_step_time(std::move(result));
      return;
    }
    for (const RequestSlot slot : plan.release) rows_.erase(slot);
    for (const StartRequest& start : plan.start) {
      rows_[start.slot] = start_row(start);
      const std::lock_guard lock(controls_->mutex);
      controls_->last_start = start;
    }
    for (const BatchEntry& entry : plan.batch) {
      for (int i = 1; i <= entry.scored; ++i)
        result.scored.push_back(score(entry.slot, entry.first + i));
      if (!entry.sample) continue;
      SampledToken token;
      token.slot = entry.slot;
      Row& row = rows_.at(entry.slot);
      const auto place = static_cast<size_t>(entry.first + entry.count - row.prompt);
      token.token = permitted(row, answer_[place % answer_.size()]);
      token.logprob = -0.5f;
      token.top_logprobs = {{token.token, -0.5f}, {token.token + 1, -1.5f}};
      result.tokens.push_back(std::move(token));
    }
    controls_->running = static_cast<int>(plan.batch.size());
    ++controls_->steps;
    end_after_step_time(std::move(result));
  }

  StepResult wait() override {
    controls_->call(controls_->before_result_);
    StepResult result = std::move(results_.front());
    results_.pop_front();
    clock_.sleep_until(result.end);
    while (controls_->hang) clock_.sleep_until(clock_.now() + 1000);
    return result;
  }
  int in_flight() const override { return static_cast<int>(results_.size()); }

 private:
  void end_after_step_time(StepResult result) {
    result.start = std::max(clock_.now(), last_end_);
    result.end = last_end_ = result.start + controls_->step_time;
    results_.push_back(std::move(result));
  }

  struct Row {
    int prompt = 0;
    std::unique_ptr<TokenMatcher> matcher;
    std::vector<TokenId> tokens = {};
  };

  static Row start_row(const StartRequest& start) {
    Row row{start.prompt_tokens, nullptr, start.tokens};
    if (!start.sampling.grammar) return row;
    row.matcher = start.sampling.grammar->start(start.sampling.stop_token_ids);
    for (auto i = static_cast<size_t>(row.prompt); i < start.tokens.size(); ++i)
      row.matcher->accept(start.tokens[i]);
    return row;
  }

  // The prompt's token at `position`: -1 for the second one, and so on, behind token 1.
  SampledToken score(RequestSlot slot, int position) const {
    SampledToken token;
    token.slot = slot;
    token.token = rows_.at(slot).tokens[static_cast<size_t>(position)];
    token.logprob = static_cast<float>(-position);
    token.top_logprobs = {{1, -0.25f}};
    return token;
  }

  TokenId permitted(Row& row, TokenId wanted) {
    if (!row.matcher) return wanted;
    std::vector<uint32_t> allowed((static_cast<size_t>(vocab_size_) + 31) / 32);
    row.matcher->fill(allowed);
    const auto may = [&](TokenId token) {
      return (allowed[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
    };
    std::vector<TokenId> tokens;
    for (TokenId token = 0; token < vocab_size_; ++token) {
      if (may(token)) tokens.push_back(token);
    }
    if (tokens.empty()) throw Error("the constraint allows no token");
    if (!may(wanted)) wanted = tokens[random_.below(tokens.size())];
    row.matcher->accept(wanted);
    return wanted;
  }

  const std::vector<TokenId> answer_;
  const int vocab_size_;
  Clock& clock_;
  Random random_{7};
  std::shared_ptr<Controls> controls_;
  Micros last_end_ = 0;
  bool lost_ = false;  // since the last step that was not carried out, until the next reset
  std::map<RequestSlot, Row> rows_;
  std::deque<StepResult> results_;
};

// The shortest chat.
inline const nlohmann::json kChat = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}}};

constexpr const char* kTestTemplate =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if tools %}tools:{{ tools | length }}\n{% endif %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

// A server on a free port. The tokenizer is that of tests/golden/tokenizers/gpt2, whose </s> ends
// answers.
class TestServer {
 public:
  explicit TestServer(std::string answer = "Hello there, world!", ServerOptions options = {},
                      int max_num_seqs = 64, bool names_end_token = true)
      : names_end_token_(names_end_token) {
    options.http.port = 0;
    if (options.served_names.empty()) options.served_names = {"test-model"};
    if (options.chat_template.empty()) options.chat_template = kTestTemplate;
    const int text_threads = options.text_threads;
    const std::string chat_template = options.chat_template;
    server_ = std::make_unique<Server>(std::move(options), [=, this] {
      return load(answer, chat_template, text_threads, max_num_seqs);
    });
    EXPECT_TRUE(server_->wait_until_loaded()) << server_->service().unready_reason();
  }

  int port() const { return server_->port(); }
  Server& server() { return *server_; }
  SpeakingExecutor::Controls& controls() { return *controls_; }

 private:
  ServingParts load(const std::string& answer, const std::string& chat_template, int text_threads,
                    int max_num_seqs) {
    const std::string golden = VAMP_SOURCE_DIR "/tests/golden/";
    const ModelConfig config = load_model_config(golden + "qwen3_moe");
    ServingParts out;
    auto file = nlohmann::json::parse(read_text_file(golden + "tokenizers/gpt2/tokenizer.json"));
    auto& added = file["added_tokens"];
    added.push_back(added.back());  // reasoning must end in a token
    added.back()["id"] = added.back()["id"].get<int>() + 1;
    added.back()["content"] = "</think>";
    added.back()["special"] = false;
    Tokenizer tokenizer(file.dump(), "gpt2");
    const int vocab_size = static_cast<int>(tokenizer.id_count());
    const TokenId eos = *tokenizer.id_of("</s>");
    std::vector<TokenId> says = tokenizer.encode(answer, false);
    says.push_back(eos);
    MemoryLayoutOptions options;
    options.page_bytes = 4 * kKiB;
    options.device_bytes = 8 * kMiB;
    EngineParts& engine = out.engine;
    engine.own_layout = std::make_unique<MemoryLayout>(make_memory_layout(config, options));
    engine.layout = engine.own_layout.get();
    engine.clock = std::make_unique<RealClock>();
    engine.executor =
        std::make_unique<SpeakingExecutor>(std::move(says), vocab_size, *engine.clock, controls_);
    engine.policy = make_policy("static", {}, *engine.layout);
    engine.config.scheduler.max_num_seqs = max_num_seqs;
    if (names_end_token_) engine.config.scheduler.eos_token_ids = {eos};
    out.info.root = "golden";
    out.info.max_model_len = 1024;
    out.info.vocab_size = vocab_size;
    if (names_end_token_) out.info.eos_token_ids = {eos};
    out.info.policy = "static";
    out.text = std::make_unique<TextService>(std::move(tokenizer), chat_template, text_threads);
    return out;
  }

  bool names_end_token_;
  std::shared_ptr<SpeakingExecutor::Controls> controls_ =
      std::make_shared<SpeakingExecutor::Controls>();
  std::unique_ptr<Server> server_;
};

struct HttpReply {
  int status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // without the chunks' marks
  nlohmann::json json() const { return nlohmann::json::parse(body, nullptr, false); }
};

// One connection, blocking, with a time limit. Sends what it is told, however broken.
class RawClient {
 public:
  explicit RawClient(int port, int receive_buffer = 0) {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    if (receive_buffer > 0)
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    const timeval limit{10, 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  }
  ~RawClient() { close_now(); }
  RawClient(const RawClient&) = delete;
  RawClient& operator=(const RawClient&) = delete;

  void close_now() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  // Without the four-way goodbye: the server is told by a reset.
  void reset() {
    const linger at_once{1, 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    close_now();
  }
  void end_sending() { shutdown(fd_, SHUT_WR); }
  bool readable() {
    pollfd ask{fd_, POLLIN, 0};
    return !buffer_.empty() || poll(&ask, 1, 0) > 0;
  }

  // False once the server has closed.
  bool send(std::string_view data) {
    while (!data.empty()) {
      const ssize_t sent = ::send(fd_, data.data(), data.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      data.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  // Up to and with `mark`; all there is when the server closes or 10 s pass.
  std::string read_until(std::string_view mark) {
    size_t end;
    while ((end = buffer_.find(mark)) == std::string::npos) {
      if (!receive()) return std::exchange(buffer_, {});
    }
    std::string out = buffer_.substr(0, end + mark.size());
    buffer_.erase(0, out.size());
    return out;
  }

  std::string read_bytes(size_t count) {
    while (buffer_.size() < count && receive()) {
    }
    std::string out = buffer_.substr(0, count);
    buffer_.erase(0, out.size());
    return out;
  }

  // True when the server has closed and there is nothing left.
  bool closed() { return buffer_.empty() && !receive(); }

  HttpReply read_head() {
    HttpReply reply;
    std::istringstream lines(read_until("\r\n\r\n"));
    std::string line;
    std::getline(lines, line);
    if (line.size() > 12) reply.status = std::atoi(line.c_str() + 9);
    while (std::getline(lines, line) && line.size() > 1) {
      const size_t colon = line.find(": ");
      std::string name = line.substr(0, colon);
      for (char& c : name) c = static_cast<char>(std::tolower(c));
      if (colon != std::string::npos)
        reply.headers[name] = line.substr(colon + 2, line.size() - colon - 3);
    }
    return reply;
  }

  HttpReply read_reply() {
    HttpReply reply = read_head();
    if (reply.headers.contains("content-length")) {
      reply.body = read_bytes(std::stoul(reply.headers["content-length"]));
    } else if (reply.headers["transfer-encoding"] == "chunked") {
      while (true) {
        const size_t size = std::strtoul(read_until("\r\n").c_str(), nullptr, 16);
        reply.body += read_bytes(size);
        read_bytes(2);
        if (size == 0) break;
      }
    }
    return reply;
  }

 private:
  bool receive() {
    char chunk[65536];
    const ssize_t got = recv(fd_, chunk, sizeof chunk, 0);
    if (got > 0) buffer_.append(chunk, static_cast<size_t>(got));
    return got > 0;
  }

  int fd_ = -1;
  std::string buffer_;
};

inline std::string request_text(const std::string& method, const std::string& path,
                                const std::string& body = "", const std::string& headers = "") {
  return method + " " + path + " HTTP/1.1\r\nHost: test\r\n" + headers +
         (body.empty() ? "" : "Content-Type: application/json\r\n") +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

inline HttpReply call(int port, const std::string& method, const std::string& path,
                      const std::string& body = "", const std::string& headers = "") {
  RawClient client(port);
  client.send(request_text(method, path, body, headers));
  return client.read_reply();
}
inline HttpReply get(int port, const std::string& path, const std::string& headers = "") {
  return call(port, "GET", path, "", headers);
}
inline HttpReply post(int port, const std::string& path, const nlohmann::json& body,
                      const std::string& headers = "") {
  return call(port, "POST", path, body.dump(), headers);
}

// The JSON of each "data: " line of an event stream, "[DONE]" as a string.
inline std::vector<nlohmann::json> events_of(const std::string& body) {
  std::vector<nlohmann::json> events;
  std::istringstream lines(body);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: ")) continue;
    const std::string data = line.substr(6);
    events.push_back(data == "[DONE]" ? nlohmann::json(data) : nlohmann::json::parse(data));
  }
  return events;
}

// Until `condition` holds; false after ten seconds.
template <typename Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 2000; ++i) {
    if (condition()) return true;
    usleep(5000);
  }
  return false;
}

}  // namespace vamp
