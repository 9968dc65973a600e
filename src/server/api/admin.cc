// The endpoints about the server itself.
#include <algorithm>

#include "server/api/fields.h"
#include "server/api/request_common.h"
#include "server/api/routes.h"
#include "server/openapi.h"

namespace vamp {

namespace asio = boost::asio;

namespace {

// GCC 12 cannot have brace-enclosed JSON in a coroutine: answers are made in plain functions.
HttpResponse json_response(const Json& json) {
  HttpResponse response;
  response.body = dump(json);
  return response;
}

HttpResponse models_response(const Service& service) {
  static const int64_t created = unix_time();
  Json data = Json::array();
  for (const std::string& name : service.options().served_names) {
    data.push_back({{"id", name},
                    {"object", "model"},
                    {"created", created},
                    {"owned_by", "vamp"},
                    {"root", service.model().root},
                    {"parent", nullptr},
                    {"max_model_len", service.model().max_model_len},
                    {"permission", Json::array()}});
  }
  return json_response({{"object", "list"}, {"data", data}});
}

HttpResponse version_response() {
  return json_response({{"version", VAMP_VERSION}});
}

HttpResponse load_response(int requests) {
  return json_response({{"server_load", requests}});
}

// The model's name where sglang-router looks for it, and where vllm-router does.
HttpResponse server_info_response(Service& service) {
  const std::string& name = service.options().served_names.front();
  return json_response(
      {{"served_model_name", name},
       {"version", VAMP_VERSION},
       {"vllm_config",
        {{"model_config", {{"model", name}, {"max_model_len", service.model().max_model_len}}},
         {"cache_config", {{"block_size", service.bridge().layout().block_tokens}}}}}});
}

// One entry for each data-parallel rank: there is one.
HttpResponse get_load_response(Service& service) {
  const int requests = service.bridge().requests();
  const Metrics::Load load = service.metrics().load();
  const int running = std::min(load.running, requests);
  Json ranks = Json::array();
  ranks.push_back({{"dp_rank", 0},
                   {"num_reqs", requests},
                   {"num_waiting_reqs", requests - running},
                   {"num_tokens", requests > 0 ? load.tokens : 0}});
  return json_response(ranks);
}

HttpResponse health_response(const Service& service) {
  const std::string reason = service.unready_reason();
  if (!reason.empty()) return ApiError(503, reason, {}, 5).response();
  HttpResponse response;
  response.content_type.clear();
  return response;
}

HttpResponse metrics_response(Service& service) {
  HttpResponse response;
  response.body = service.metrics().text(service.bridge().requests());
  response.content_type = "text/plain; version=0.0.4; charset=utf-8";
  return response;
}

HttpResponse reset_response(Service& service) {
  if (!service.bridge().reset_prefix_cache())
    throw ApiError(503, "the engine is busy: try again", {}, 1);
  HttpResponse response;
  response.content_type.clear();
  return response;
}

}  // namespace

asio::awaitable<void> models(Service& service, const HttpRequest&, HttpExchange& exchange) {
  co_await exchange.reply(models_response(service));
}

asio::awaitable<void> health(Service& service, const HttpRequest&, HttpExchange& exchange) {
  co_await exchange.reply(health_response(service));
}

asio::awaitable<void> ping(Service& service, const HttpRequest&, HttpExchange& exchange) {
  co_await exchange.reply(health_response(service));
}

asio::awaitable<void> openapi(Service& service, const HttpRequest&, HttpExchange& exchange) {
  co_await exchange.reply(json_response(make_openapi(service)));
}

asio::awaitable<void> version(Service&, const HttpRequest&, HttpExchange& exchange) {
  co_await exchange.reply(version_response());
}

asio::awaitable<void> load(Service& service, const HttpRequest&, HttpExchange& exchange) {
  co_await exchange.reply(load_response(service.bridge().requests()));
}

asio::awaitable<void> server_info(Service& service, const HttpRequest&, HttpExchange& exchange) {
  co_await exchange.reply(server_info_response(service));
}

asio::awaitable<void> get_load(Service& service, const HttpRequest&, HttpExchange& exchange) {
  co_await exchange.reply(get_load_response(service));
}

asio::awaitable<void> metrics(Service& service, const HttpRequest&, HttpExchange& exchange) {
  co_await exchange.reply(metrics_response(service));
}

asio::awaitable<void> reset_prefix_cache(Service& service, const HttpRequest&,
                                         HttpExchange& exchange) {
  co_await exchange.reply(reset_response(service));
}

}  // namespace vamp
