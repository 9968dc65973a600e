// For tests: a server whose model says what it is told.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <map>
#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/random.h"
#include "core/make_policy.h"
#include "server/server.h"
#include "server/test_client.h"

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

}  // namespace vamp
