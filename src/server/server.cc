#include "server/server.h"

#include <spdlog/spdlog.h>

#include <chrono>

namespace vamp {
namespace {

using namespace std::chrono_literals;

constexpr auto kPoll = 50ms;

bool loopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace

Server::Server(ServerOptions options, Load load)
    : service_(std::move(options)),
      http_(std::make_unique<HttpServer>(service_.options().http, routes_)) {
  const HttpOptions& http = service_.options().http;
  spdlog::info("listening on {}://{}:{}", http.tls_key.empty() ? "http" : "https", http.host,
               port());
  if (!loopback(http.host) && service_.keys().open()) {
    spdlog::warn(
        "ANYBODY who can reach {}:{} can use this server: set --api-key, or listen on "
        "127.0.0.1",
        http.host, port());
  }
  loader_ = std::thread([this, load = std::move(load)] {
    try {
      ServingParts model = load();
      service_.start(std::move(model.info), std::move(model.text), std::move(model.engine),
                     std::move(model.listeners));
    } catch (const std::bad_alloc&) {
      service_.fail("out of memory while the model was loaded");
    } catch (const std::exception& error) {
      service_.fail(error.what());
    }
  });
  watchdog_ = std::thread([this] { watch(); });
}

Server::~Server() {
  stopping_ = true;
  loader_.join();
  watchdog_.join();
  service_.stop_engine();
  http_->stop();
  service_.stop_text();
  http_.reset();
}

bool Server::wait_until_loaded(const std::function<bool()>& give_up) {
  while (service_.state() == Service::State::kLoading && !give_up())
    std::this_thread::sleep_for(kPoll);
  return service_.state() == Service::State::kReady;
}

// A worker that hangs must not hang its clients.
void Server::watch() {
  while (!stopping_) {
    std::this_thread::sleep_for(kPoll);
    try {
      fail_stalled_engine();
    } catch (const std::bad_alloc&) {  // the next look may find memory
    }
  }
}

void Server::fail_stalled_engine() {
  const double limit = service_.options().stall_seconds;
  if (service_.state() == Service::State::kLoading || limit <= 0) return;
  if (!service_.bridge().failure().empty() || !service_.bridge().stalled(limit * kSecond)) return;
  const std::string reason = fmt::format("the engine has made no progress for {:g} s", limit);
  spdlog::critical("{}: it takes no more requests", reason);
  service_.bridge().fail(reason);
}

void Server::shut_down(const std::function<bool()>& hurry) {
  service_.begin_stopping();
  http_->drain();
  const auto give_up =
      std::chrono::steady_clock::now() +
      std::chrono::milliseconds(static_cast<int64_t>(service_.options().drain_seconds * 1e3));
  const auto wait = [&](auto until) {
    while (http_->busy_connections() > 0 && std::chrono::steady_clock::now() < until && !hurry())
      std::this_thread::sleep_for(kPoll);
  };
  wait(give_up);
  const int left = http_->busy_connections();
  if (left == 0) return;
  spdlog::warn("{} requests are still under way: they end with an error", left);
  service_.bridge().fail("the server is shutting down");
  wait(std::chrono::steady_clock::now() + 2s);
}

}  // namespace vamp
