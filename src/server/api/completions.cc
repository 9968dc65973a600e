// POST /v1/completions
#include "server/api/completion_request.h"
#include "server/api/openai_format.h"
#include "server/api/request_common.h"
#include "server/api/routes.h"
#include "server/api/run_generation.h"

namespace vamp {
namespace {

namespace asio = boost::asio;

// "logprobs" as OpenAI's completions had it: four lists with an entry for each token.
class LogprobLists {
 public:
  // `end`: bytes of the tokens before these; grows by theirs.
  LogprobLists(const Tokenizer& tokenizer, size_t& end) : tokenizer_(tokenizer), end_(end) {}

  void add(const std::vector<TokenLogprob>& tokens) {
    for (const TokenLogprob& token : tokens) {
      Json top = Json::object();
      top[text(token.token)] = token.logprob;
      for (const auto& [id, value] : token.top) top[text(id)] = value;
      add(token.token, token.logprob, std::move(top));
    }
  }
  // Nothing says how likely a prompt's first token was.
  void add_prompt(TokenId first, const std::vector<TokenLogprob>& others) {
    add(first, nullptr, nullptr);
    add(others);
  }

  Json json() {
    return {{"text_offset", std::move(offsets_)},
            {"token_logprobs", std::move(values_)},
            {"tokens", std::move(texts_)},
            {"top_logprobs", std::move(tops_)}};
  }

 private:
  std::string text(TokenId token) const { return tokenizer_.decode({&token, 1}, false); }

  void add(TokenId token, Json logprob, Json top) {
    const std::string written = text(token);
    offsets_.push_back(end_);
    end_ += written.size();
    texts_.push_back(written);
    values_.push_back(std::move(logprob));
    tops_.push_back(std::move(top));
  }

  const Tokenizer& tokenizer_;
  size_t& end_;
  Json texts_ = Json::array(), values_ = Json::array(), offsets_ = Json::array(),
       tops_ = Json::array();
};

class CompletionFormat final : public OpenAiFormat {
 public:
  CompletionFormat(const CompletionRequest& request, const Service& service, std::string id,
                   const Tokenizer& tokenizer)
      : OpenAiFormat(request.stream, std::move(id), shown_model(service), kObject),
        request_(request),
        tokenizer_(tokenizer),
        text_ends_(request.generation.prompts.size() * static_cast<size_t>(request.generation.n)) {}

  void begin(const Generation& generation, std::string& out) override {
    if (!request_.echo) return;
    for (size_t c = 0; c < generation.choices(); ++c) {
      ChoiceDelta echo;
      echo.message.content = request_.echo_text(c);
      chunk(c, echo, generation, out);
    }
  }

  void delta(size_t choice, const ChoiceDelta& delta, const Generation& generation,
             std::string& out) override {
    chunk(choice, delta, generation, out);
  }

  std::string whole(const std::vector<ChoiceResult>& choices,
                    const Generation& generation) override {
    Json json = envelope(kObject, generation);
    for (size_t c = 0; c < choices.size(); ++c) {
      const size_t prompt = c / static_cast<size_t>(request_.generation.n);
      const auto& scores =
          choices[c - c % static_cast<size_t>(request_.generation.n)].prompt_logprobs;
      const ChoiceEnd& end = generation.choice(c).end();
      Json choice = {
          {"index", c},
          {"text", (request_.echo ? request_.echo_text(c) : "") + choices[c].message.content},
          {"logprobs", nullptr},
          {"finish_reason", end.reason},
          {"stop_reason", stop_reason_json(end)}};
      if (request_.generation.choice.logprobs) {
        LogprobLists lists(tokenizer_, text_ends_[c]);
        if (request_.echo) lists.add_prompt(request_.generation.prompts[prompt].front(), scores);
        lists.add(choices[c].logprobs);
        choice["logprobs"] = lists.json();
      }
      if (request_.prompt_logprobs)
        choice["prompt_logprobs"] = prompt_logprobs_json(tokenizer_, scores);
      if (request_.generation.choice.token_ids) {
        choice["token_ids"] = choices[c].token_ids;
        choice["prompt_token_ids"] = request_.generation.prompts[prompt];
      }
      json["choices"].push_back(std::move(choice));
    }
    return dump(json);
  }

 private:
  static constexpr const char* kObject = "text_completion";  // also of a chunk

  void chunk(size_t choice, const ChoiceDelta& delta, const Generation& generation,
             std::string& out) {
    open_chunk(choice, out);
    out += R"(,"text":")";
    append_escaped(delta.message.content, out);
    out += R"(","logprobs":)";
    if (delta.logprobs.empty()) {
      out += "null";
    } else {
      LogprobLists lists(tokenizer_, text_ends_[choice]);
      lists.add(delta.logprobs);
      out += dump(lists.json());
    }
    if (delta.finished) {
      const ChoiceEnd& end = generation.choice(choice).end();
      append_finish(end.reason, end, out);
    } else {
      out += R"(,"finish_reason":null,"stop_reason":null)";
    }
    close_chunk(delta, generation, out);
  }

  const CompletionRequest& request_;
  const Tokenizer& tokenizer_;
  std::vector<size_t> text_ends_;  // by choice: bytes of the tokens shown in logprobs
};

HttpResponse rendered_response(const CompletionRequest& request) {
  Json json = Json::array();
  for (size_t p = 0; p < request.generation.prompts.size(); ++p) {
    json.push_back(
        {{"token_ids", request.generation.prompts[p]},
         {"prompt_token_ids", request.generation.prompts[p]},
         {"prompt", request.prompt_texts.empty() ? Json() : Json(request.prompt_texts[p])}});
  }
  HttpResponse response;
  response.body = dump(json);
  return response;
}

}  // namespace

asio::awaitable<void> completions(Service& service, const HttpRequest& http,
                                  HttpExchange& exchange) {
  const CompletionRequest request =
      co_await service.text().run([&] { return prepare_completion(service, http); });
  CompletionFormat format(request, service, response_id("cmpl-", http), service.text().tokenizer());
  co_await run_generation(service, request.generation, request.stream.stream, format, exchange);
}

asio::awaitable<void> render_completion(Service& service, const HttpRequest& http,
                                        HttpExchange& exchange) {
  const CompletionRequest request =
      co_await service.text().run([&] { return prepare_completion(service, http); });
  co_await exchange.reply(rendered_response(request));
}

}  // namespace vamp
