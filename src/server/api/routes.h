// The endpoints: which path and method goes to which function.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <span>

#include "server/http/message.h"
#include "server/service.h"

namespace vamp {

using RouteHandler = boost::asio::awaitable<void> (*)(Service&, const HttpRequest&, HttpExchange&);

struct Route {
  const char* method;
  const char* path;
  RouteHandler handler;
  bool needs_model = false;
  bool needs_key = false;
};

// All of them. What each takes and answers stands in openapi/*.json.
std::span<const Route> routes();

// OpenAI's
boost::asio::awaitable<void> chat_completions(Service&, const HttpRequest&, HttpExchange&);
boost::asio::awaitable<void> completions(Service&, const HttpRequest&, HttpExchange&);
boost::asio::awaitable<void> responses(Service&, const HttpRequest&, HttpExchange&);
boost::asio::awaitable<void> models(Service&, const HttpRequest&, HttpExchange&);
// Anthropic's
boost::asio::awaitable<void> messages(Service&, const HttpRequest&, HttpExchange&);
boost::asio::awaitable<void> count_message_tokens(Service&, const HttpRequest&, HttpExchange&);
// vLLM's
boost::asio::awaitable<void> tokenize(Service&, const HttpRequest&, HttpExchange&);
boost::asio::awaitable<void> detokenize(Service&, const HttpRequest&, HttpExchange&);
boost::asio::awaitable<void> render_chat(Service&, const HttpRequest&, HttpExchange&);
boost::asio::awaitable<void> render_completion(Service&, const HttpRequest&, HttpExchange&);
boost::asio::awaitable<void> health(Service&, const HttpRequest&, HttpExchange&);
boost::asio::awaitable<void> ping(Service&, const HttpRequest&, HttpExchange&);
boost::asio::awaitable<void> openapi(Service&, const HttpRequest&, HttpExchange&);
boost::asio::awaitable<void> version(Service&, const HttpRequest&, HttpExchange&);
boost::asio::awaitable<void> load(Service&, const HttpRequest&, HttpExchange&);
boost::asio::awaitable<void> metrics(Service&, const HttpRequest&, HttpExchange&);
boost::asio::awaitable<void> reset_prefix_cache(Service&, const HttpRequest&, HttpExchange&);
// SGLang's, for routers
boost::asio::awaitable<void> server_info(Service&, const HttpRequest&, HttpExchange&);
boost::asio::awaitable<void> get_load(Service&, const HttpRequest&, HttpExchange&);
// Ours
boost::asio::awaitable<void> dashboard(Service&, const HttpRequest&, HttpExchange&);
boost::asio::awaitable<void> dashboard_data(Service&, const HttpRequest&, HttpExchange&);

// Finds the route and turns what handlers throw into responses.
class Routes final : public HttpHandler {
 public:
  explicit Routes(Service& service) : service_(service) {}
  std::optional<HttpResponse> refuse(const HttpRequest& head) override;
  boost::asio::awaitable<void> handle(HttpRequest request, HttpExchange& exchange) override;
  HttpResponse fault(int status, const std::string& message, std::string_view path) override;

 private:
  Service& service_;
};

}  // namespace vamp
