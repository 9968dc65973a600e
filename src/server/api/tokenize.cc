// POST /tokenize and /detokenize
#include "server/api/chat_request.h"
#include "server/api/request_common.h"
#include "server/api/routes.h"

namespace vamp {
namespace {

namespace asio = boost::asio;

Json tokenized(Service& service, const HttpRequest& http) {
  const Json json = parse_body(http.body, service.options().max_json_depth);
  const Fields body(json);
  check_model(body, service);
  const Tokenizer& tokenizer = service.text().tokenizer();
  std::vector<TokenId> ids;
  if (body.find("messages")) {
    if (body.find("prompt")) bad_field("prompt", "not together with messages");
    Conversation conversation = read_conversation(body, service, std::nullopt);
    conversation.only_counted = true;
    ChatRequest request;
    render_conversation(service, std::move(conversation), request);
    ids = request.generation.prompts.front();
  } else {
    if (!body.find("prompt")) throw ApiError(400, "prompt: missing", "prompt");
    ids = tokenizer.encode(body.string("prompt"), body.boolean("add_special_tokens", true));
  }
  Json out = {{"count", ids.size()},
              {"max_model_len", service.model().max_model_len},
              {"tokens", ids},
              {"token_strs", nullptr}};
  if (body.boolean("return_token_strs", false)) {
    out["token_strs"] = Json::array();
    for (const TokenId id : ids) out["token_strs"].push_back(tokenizer.token(id));
  }
  return out;
}

Json detokenized(Service& service, const HttpRequest& http) {
  const Json json = parse_body(http.body, service.options().max_json_depth);
  const Fields body(json);
  check_model(body, service);
  const Json* tokens = body.find("tokens");
  const auto ids = read_token_ids(tokens ? *tokens : Json(), service, "tokens");
  return {{"prompt", service.text().tokenizer().decode(ids, false)}};
}

}  // namespace

asio::awaitable<void> tokenize(Service& service, const HttpRequest& http, HttpExchange& exchange) {
  const Json json = co_await service.text().run([&] { return tokenized(service, http); });
  HttpResponse response;
  response.body = dump(json);
  co_await exchange.reply(std::move(response));
}

asio::awaitable<void> detokenize(Service& service, const HttpRequest& http,
                                 HttpExchange& exchange) {
  const Json json = co_await service.text().run([&] { return detokenized(service, http); });
  HttpResponse response;
  response.body = dump(json);
  co_await exchange.reply(std::move(response));
}

}  // namespace vamp
