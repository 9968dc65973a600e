// A request of an API while the engine works on it: one engine request for each choice.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <memory>
#include <string>
#include <vector>

#include "server/choice_text.h"
#include "server/engine_bridge.h"
#include "server/http/message.h"
#include "server/server_options.h"

namespace vamp {

// What every API's request comes down to.
struct GenerationRequest {
  std::vector<std::vector<TokenId>> prompts;
  int n = 1;  // choices of each prompt
  SamplingParams sampling;
  ChoiceOptions choice;
  ReuseHint reuse;
  uint64_t cache_salt = 0;
  int priority = 0;
  std::shared_ptr<const TraceContext> trace;  // null: the caller traces nothing
};

// By the engine's clock.
struct GenerationTimes {
  Micros start = 0;
  std::optional<Micros> first_token;
  std::optional<Micros> queued;  // how long; known when the engine ended a choice by itself
};

// Used on the exchange's thread. What is still under way is cancelled when it goes.
class Generation {
 public:
  // Submits every choice. Throws ApiError when the engine takes none (500, 503). All references
  // must outlive this.
  Generation(EngineBridge& bridge, const Tokenizer& tokenizer, HttpExchange& exchange,
             const GenerationRequest& request, const ServerOptions& options);
  ~Generation();
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // Choices are prompts x n, those of one prompt side by side.
  size_t choices() const { return choices_.size(); }
  const ChoiceText& choice(size_t index) const { return *choices_[index].text; }
  bool finished() const { return unfinished_ == 0; }

  // What has become certain since the last call, by choice, or the first of it where there is much;
  // empty when the client has gone or the stream was silent for long. Throws ApiError when the
  // engine fails the request.
  boost::asio::awaitable<std::vector<std::pair<size_t, ChoiceDelta>>> next();

  int prompt_tokens() const { return prompt_tokens_; }
  int completion_tokens() const;
  int cached_tokens() const { return cached_tokens_; }  // known once finished
  const GenerationTimes& times() const { return times_; }
  const std::string& error() const { return error_; }  // the engine's; empty: none

 private:
  struct Choice {
    RequestId id = 0;
    std::unique_ptr<ChoiceText> text;
    bool engine_done = false;
  };

  void submit(const GenerationRequest& request, int max_waiting);
  void take(const EngineEvent& event, std::vector<std::pair<size_t, ChoiceDelta>>& out);
  boost::asio::awaitable<void> wait();

  EngineBridge& bridge_;
  HttpExchange& exchange_;
  std::shared_ptr<EventQueue> queue_ = std::make_shared<EventQueue>();
  std::vector<Choice> choices_;
  size_t unfinished_ = 0;
  int prompt_tokens_ = 0, cached_tokens_ = 0;
  GenerationTimes times_;
  std::string error_;
};

}  // namespace vamp
