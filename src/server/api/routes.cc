#include "server/api/routes.h"

#include <spdlog/spdlog.h>
#include <strings.h>

#include "server/api_error.h"
#include "server/trace_context.h"
#include "text/chat_renderer.h"

namespace vamp {
namespace {

struct Route {
  const char* method;
  const char* path;
  RouteHandler handler;
  bool needs_model = false;
  bool needs_key = false;
};

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
    {"GET", "/health", health},
    {"GET", "/ping", ping},
    {"POST", "/ping", ping},
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

bool anthropic(const HttpRequest& request) {
  return request.path.starts_with("/v1/messages");
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

HttpResponse response_of(const ApiError& error, const HttpRequest& request) {
  return anthropic(request) ? error.anthropic_response() : error.response();
}

}  // namespace

std::optional<HttpResponse> Routes::refuse(const HttpRequest& head) {
  bool known_path = false;
  const Route* route = find_route(head, known_path);
  if (!route && known_path) {
    return response_of(ApiError(405, fmt::format("{} does not take {}", head.path, head.method)),
                       head);
  }
  if (!route) {
    return response_of(
        ApiError(404, fmt::format("no such endpoint: {} {}", head.method, head.path)), head);
  }
  if (route->needs_key && !service_.keys().admits(head)) {
    HttpResponse response = response_of(
        ApiError(401, "a valid API key is needed: send it as \"Authorization: Bearer KEY\""), head);
    response.headers.emplace_back("WWW-Authenticate", "Bearer");
    return response;
  }
  if (const std::string coding = unknown_coding(head); !coding.empty()) {
    return response_of(
        ApiError(415, fmt::format("bodies with {} are not supported: send the JSON as it is, "
                                  "without that header",
                                  coding)),
        head);
  }
  if (route->needs_model && service_.state() != Service::State::kReady) {
    return response_of(ApiError(503, service_.unready_reason(), {}, 5), head);
  }
  return std::nullopt;
}

boost::asio::awaitable<void> Routes::handle(HttpRequest request, HttpExchange& exchange) {
  bool known_path = false;
  const Route* route = find_route(request, known_path);
  const std::optional<TraceContext> trace = read_trace_context(request);
  if (trace) tell(*trace, request, exchange);
  std::optional<ApiError> fault;
  try {
    co_await route->handler(service_, request, exchange);
  } catch (const ApiError& error) {
    fault = error;
  } catch (const TemplateError& error) {
    fault = ApiError(400, error.what(), "messages");
  } catch (const Error& error) {
    fault = ApiError(400, error.what());
  } catch (const std::bad_alloc&) {
    fault = ApiError(500, "out of memory");
  }
  if (!fault) co_return;
  if (fault->status() >= 500) {
    spdlog::warn("{} {}{}: {}", fault->status(), request.path,
                 trace ? " (trace " + trace->trace_id + ")" : "", fault->what());
  }
  if (!exchange.started()) co_await exchange.reply(response_of(*fault, request));
}

HttpResponse Routes::fault(int status, const std::string& message) {
  return ApiError(status, message).response();
}

}  // namespace vamp
