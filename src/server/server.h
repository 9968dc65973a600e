// The whole server: listens at once, loads the model meanwhile, serves, and stops in order.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "server/api/routes.h"
#include "server/http/http_server.h"
#include "server/service.h"

namespace vamp {

// What loading a model gives.
struct ServingParts {
  ServedModel info;
  std::unique_ptr<TextService> text;
  EngineParts engine;
  std::vector<EngineListener*> listeners = {};  // told too; must outlive the server
};

class Server {
 public:
  using Load = std::function<ServingParts()>;

  // The port answers when this returns; `load` runs on a thread of its own. Throws Error when the
  // address cannot be bound.
  Server(ServerOptions options, Load load);
  // Without draining: ends what is under way.
  ~Server();

  int port() const { return http_->port(); }
  Service& service() { return service_; }
  HttpServer& http() { return *http_; }

  // True once the model is loaded. False when it could not be, and service().unready_reason() says
  // why; or, while it is still being loaded, when `give_up` says true.
  bool wait_until_loaded(const std::function<bool()>& give_up = [] { return false; });
  // Takes no more requests, waits for those under way up to the drain limit or `hurry` saying
  // true, then ends them with an error.
  void shut_down(const std::function<bool()>& hurry);

 private:
  void watch();
  void fail_stalled_engine();

  Service service_;
  Routes routes_{service_};
  std::unique_ptr<HttpServer> http_;
  std::thread loader_, watchdog_;
  std::atomic<bool> stopping_ = false;
};

}  // namespace vamp
