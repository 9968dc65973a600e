#include "server/api/routes.h"

#include <spdlog/spdlog.h>
#include <strings.h>

#include "server/api_error.h"
#include "server/trace_context.h"

namespace vamp {
namespace {

constexpr Route kRoutes[] = {
    {"POST", "/v1/chat/completions", chat_completions, true, true},
    {"POST", "/v1/chat/completions/render", render_chat, true, true},
    {"POST", "/v1/completions", completions, true, true},
    {"POST", "/v1/completions/render", render_completion, true, true},
    {"POST", "/v1/responses", responses, true, true},
    {"POST", "/v1/messages", messages, true, true},
    {"POST", "/v1/messages/count_tokens", count_message_tokens, true, true},
    {"GET", "/v1/models", models, true, true},
    {"POST", "/tokenize", tokenize, true, true},
    {"POST", "/detokenize", detokenize, true, true},
    {"POST", "/reset_prefix_cache", reset_prefix_cache, true, true},
    {"POST", "/flush_cache", reset_prefix_cache, true, true},
    {"GET", "/server_info", server_info, true},
    {"GET", "/get_load", get_load, true},
    {"GET", "/health", health},
    {"GET", "/ping", ping},
    {"POST", "/ping", ping},
    {"GET", "/openapi.json", openapi},
    {"GET", "/version", version},
    {"GET", "/load", load},
    {"GET", "/metrics", metrics},
    {"GET", "/dashboard", dashboard},
    {"GET", "/dashboard/data", dashboard_data, false, true},
};

const Route* find_route(const HttpRequest& request, bool& known_path) {
  const std::string_view method =
      request.method == "HEAD" ? std::string_view("GET") : request.method;
  known_path = false;
  for (const Route& route : kRoutes) {
    if (request.path != route.path) continue;
    known_path = true;
    if (method == route.method) return &route;
  }
  return nullptr;
}

// In the shape that the path's clients read.
HttpResponse response_of(const ApiError& error, std::string_view path) {
  return path.starts_with("/v1/messages") ? error.anthropic_response() : error.response();
}

// The methods that a path takes: what a 405 must say.
std::string allowed_methods(std::string_view path) {
  std::string methods;
  for (const Route& route : kRoutes) {
    if (path != route.path) continue;
    if (!methods.empty()) methods += ", ";
    methods += route.method;
    if (route.method == std::string_view("GET")) methods += ", HEAD";
  }
  return methods;
}

// The response says which span the request was; the log, whose it is.
void tell(const TraceContext& trace, const HttpRequest& request, HttpExchange& exchange) {
  exchange.add_header("traceparent", trace.traceparent());
  if (!trace.state.empty()) exchange.add_header("tracestate", trace.state);
  spdlog::info("{} {}: span {} of trace {}, called by {}", request.method, request.path,
               trace.span_id, trace.trace_id, trace.parent_id);
}

// A header that says of the body what is not undone here; empty: none.
std::string unknown_coding(const HttpRequest& head) {
  for (const auto& [name, value] : head.headers) {
    if (name == "content-encoding" && strcasecmp(value.c_str(), "identity") != 0)
      return "Content-Encoding: " + value;
    if (name == "transfer-encoding" && strcasecmp(value.c_str(), "chunked") != 0)
      return "Transfer-Encoding: " + value;
  }
  return {};
}

}  // namespace

std::span<const Route> routes() {
  return kRoutes;
}

std::optional<HttpResponse> Routes::refuse(const HttpRequest& head) {
  bool known_path = false;
  const Route* route = find_route(head, known_path);
  if (!route && known_path) {
    HttpResponse response = response_of(
        ApiError(405, fmt::format("{} does not take {}", head.path, head.method)), head.path);
    response.headers.emplace_back("Allow", allowed_methods(head.path));
    return response;
  }
  if (!route) {
    return response_of(
        ApiError(404, fmt::format("no such endpoint: {} {}", head.method, head.path)), head.path);
  }
  if (route->needs_key && !service_.keys().admits(head)) {
    HttpResponse response = response_of(
        ApiError(401, "a valid API key is needed: send it as \"Authorization: Bearer KEY\""),
        head.path);
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  if (const std::string coding = unknown_coding(head); !coding.empty()) {
    return response_of(
        ApiError(415, fmt::format("bodies with {} are not supported: send the JSON as it is, "
                                  "without that header",
                                  coding)),
        head.path);
  }
  if (route->needs_model && service_.state() != Service::State::kReady) {
    return response_of(ApiError(503, service_.unready_reason(), {}, 5), head.path);
  }
  return std::nullopt;
}

boost::asio::awaitable<void> Routes::handle(HttpRequest request, HttpExchange& exchange) {
  bool known_path = false;
  const Route* route = find_route(request, known_path);
  if (const auto trace = read_trace_context(request)) {
    request.trace = std::make_shared<const TraceContext>(*trace);
    tell(*trace, request, exchange);
  }
  std::optional<ApiError> fault;
  try {
    co_await route->handler(service_, request, exchange);
  } catch (const boost::system::system_error&) {
    throw;  // the client has gone
  } catch (const std::exception& error) {
    fault = api_error_of(error);
  }
  if (!fault) co_return;
  if (fault->status() >= 500) {
    spdlog::warn("{} {}{}: {}", fault->status(), request.path,
                 request.trace ? " (trace " + request.trace->trace_id + ")" : "", fault->what());
  }
  if (!exchange.started()) co_await exchange.reply(response_of(*fault, request.path));
}

HttpResponse Routes::fault(int status, const std::string& message, std::string_view path) {
  return response_of(ApiError(status, message), path);
}

}  // namespace vamp
