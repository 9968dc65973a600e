// POST /v1/completions
#include "server/api/completion_request.h"
#include "server/api/openai_format.h"
#include "server/api/request_common.h"
#include "server/api/routes.h"
#include "server/api/run_generation.h"

namespace vamp {
namespace {

namespace asio = boost::asio;

class CompletionFormat final : public OutputFormat {
 public:
  CompletionFormat(const CompletionRequest& request, const Service& service, std::string id,
                   const Tokenizer& tokenizer)
      : request_(request), tokenizer_(tokenizer), id_(std::move(id)) {
    prefix_ = fmt::format(
        R"(data: {{"id":"{}","object":"text_completion","created":{},"model":{},"choices":[)", id_,
        created_, dump(Json(shown_model(service))));
    model_ = shown_model(service);
    text_ends_.resize(request.generation.prompts.size() *
                      static_cast<size_t>(request.generation.n));
  }

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

  void end(const Generation& generation, std::string& out) override {
    if (request_.stream.include_usage) {
      out += prefix_ + "],";
      append_usage(generation, out);
      out += "}\n\n";
    }
    out += "data: [DONE]\n\n";
  }

  void error(const ApiError& error, std::string& out) override {
    out += "data: " + error.json() + "\n\ndata: [DONE]\n\n";
  }

  std::string whole(const std::vector<ChoiceResult>& choices,
                    const Generation& generation) override {
    Json json = {{"id", id_},
                 {"object", "text_completion"},
                 {"created", created_},
                 {"model", model_},
                 {"choices", Json::array()}};
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
    json["usage"] = usage_json(generation);
    return dump(json);
  }

 private:
  void chunk(size_t choice, const ChoiceDelta& delta, const Generation& generation,
             std::string& out) {
    out += prefix_;
    fmt::format_to(std::back_inserter(out), R"({{"index":{},"text":")", choice);
    append_escaped(delta.message.content, out);
    out += R"(","logprobs":)";
    out += delta.logprobs.empty() ? "null" : dump(logprobs(choice, delta.logprobs));
    if (delta.finished) {
      const ChoiceEnd& end = generation.choice(choice).end();
      fmt::format_to(std::back_inserter(out), R"(,"finish_reason":"{}","stop_reason":{})",
                     end.reason, dump(stop_reason_json(end)));
    } else {
      out += R"(,"finish_reason":null,"stop_reason":null)";
    }
    append_token_ids(delta.token_ids, out);
    out += "}]";
    if (request_.stream.continuous_usage) {
      out += ',';
      append_usage(generation, out);
    }
    out += "}\n\n";
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
  const std::string id_;
  const int64_t created_ = unix_time();
  std::string model_, prefix_;
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
