// The dashboard: a page that holds no data, and what it asks for once a second.
#include <algorithm>
#include <charconv>

#include "server/api/routes.h"
#include "server/assets.h"
#include "web/page.h"

namespace vamp {

namespace asio = boost::asio;

namespace {

// The value of `name` in "a=1&b=2", where it is a whole number.
int64_t number_in(std::string_view query, std::string_view name, int64_t fallback) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (!pair.starts_with(name) || pair.substr(name.size(), 1) != "=") continue;
    const std::string_view text = pair.substr(name.size() + 1);
    int64_t value = 0;
    const auto end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, value);
    if (read.ec == std::errc() && read.ptr == end) return value;
  }
  return fallback;
}

const char* state_name(Service::State state) {
  switch (state) {
    case Service::State::kLoading:
      return "loading";
    case Service::State::kReady:
      return "ready";
    case Service::State::kFailed:
      return "failed";
    case Service::State::kStopping:
      break;
  }
  return "stopping";
}

HttpResponse page_response() {
  static const std::string page = make_page("VAMP", kDashboardJs, nlohmann::json::object());
  HttpResponse response;
  response.body = page;
  response.content_type = "text/html; charset=utf-8";
  // Everything is inside the page, and it talks to nobody but this server.
  response.headers.emplace_back(
      "Content-Security-Policy",
      "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src "
      "'self'; frame-ancestors 'none'");
  response.headers.emplace_back("X-Content-Type-Options", "nosniff");
  return response;
}

HttpResponse data_response(Service& service, const HttpRequest& request) {
  Activity::Position seen;
  constexpr int64_t kMostSeconds = int64_t{1} << 40;
  seen.second = std::clamp(number_in(request.query, "second", -1), int64_t{-1}, kMostSeconds);
  seen.change = static_cast<uint64_t>(std::max<int64_t>(0, number_in(request.query, "change", 0)));
  const Service::State state = service.state();
  const bool loaded = state == Service::State::kReady || state == Service::State::kStopping;
  nlohmann::json data = service.activity().since(seen, loaded ? service.bridge().now() : 0,
                                                 service.keys().admits_operator(request));
  data["model"] = service.options().served_names.front();
  data["version"] = VAMP_VERSION;
  data["state"] = state_name(state);
  data["reason"] = service.unready_reason();
  data["policy"] = loaded ? service.model().policy : "";
  HttpResponse response;
  response.body = data.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  response.headers.emplace_back("Cache-Control", "no-store");
  return response;
}

}  // namespace

asio::awaitable<void> dashboard(Service&, const HttpRequest&, HttpExchange& exchange) {
  co_await exchange.reply(page_response());
}

asio::awaitable<void> dashboard_data(Service& service, const HttpRequest& request,
                                     HttpExchange& exchange) {
  co_await exchange.reply(data_response(service, request));
}

}  // namespace vamp
