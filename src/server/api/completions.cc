// POST /v1/completions
#include "server/api/completion_request.h"
#include "server/api/openai_format.h"
#include "server/api/request_common.h"
#include "server/api/routes.h"
#include "server/api/run_generation.h"

namespace vamp {
namespace {

namespace asio = boost::asio;

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
      const ChoiceEnd& end = generation.choice(c).end();
      Json choice = {
          {"index", c},
          {"text", (request_.echo ? request_.echo_text(c) : "") + choices[c].message.content},
          {"logprobs", nullptr},
          {"finish_reason", end.reason},
          {"stop_reason", stop_reason_json(end)}};
      if (request_.generation.choice.logprobs)
        choice["logprobs"] = logprobs(c, choices[c].logprobs);
      if (request_.generation.choice.token_ids) {
        choice["token_ids"] = choices[c].token_ids;
        choice["prompt_token_ids"] =
            request_.generation.prompts[c / static_cast<size_t>(request_.generation.n)];
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
    out += delta.logprobs.empty() ? "null" : dump(logprobs(choice, delta.logprobs));
    if (delta.finished) {
      const ChoiceEnd& end = generation.choice(choice).end();
      append_finish(end.reason, end, out);
    } else {
      out += R"(,"finish_reason":null,"stop_reason":null)";
    }
    close_chunk(delta, generation, out);
  }

  Json logprobs(size_t choice, const std::vector<TokenLogprob>& tokens) {
    Json texts = Json::array(), values = Json::array(), offsets = Json::array(),
         tops = Json::array();
    for (const TokenLogprob& token : tokens) {
      const std::string text = tokenizer_.decode({&token.token, 1}, false);
      texts.push_back(text);
      values.push_back(token.logprob);
      offsets.push_back(text_ends_[choice]);
      text_ends_[choice] += text.size();
      Json top = Json::object();
      top[text] = token.logprob;
      for (const auto& [id, value] : token.top) top[tokenizer_.decode({&id, 1}, false)] = value;
      tops.push_back(std::move(top));
    }
    return {{"text_offset", offsets},
            {"token_logprobs", values},
            {"tokens", texts},
            {"top_logprobs", tops}};
  }

  const CompletionRequest& request_;
  const Tokenizer& tokenizer_;
  std::vector<size_t> text_ends_;  // by choice: bytes of the tokens shown in logprobs
};

HttpResponse rendered_response(const CompletionRequest& request) {
  Json json = Json::array();
  for (size_t p = 0; p < request.generation.prompts.size(); ++p) {
    json.push_back(
        {{"prompt_token_ids", request.generation.prompts[p]},
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
