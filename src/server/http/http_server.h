// Listens, and runs connections on io threads.
#pragma once

#include <memory>
#include <string>

#include "server/http/message.h"

namespace boost::asio {
class io_context;
}

namespace vamp {

// A connection stays on one io thread from its first byte to its last. All functions from any
// thread but the io threads.
class HttpServer {
 public:
  // Binds and serves at once. `handler` must outlive this. Throws Error when the address cannot be
  // bound or the certificate not be read.
  HttpServer(const HttpOptions& options, HttpHandler& handler);
  ~HttpServer();  // stops
  // Closes every connection and ends the io threads. Handlers end where they wait, when this object
  // goes: what they use must live until then.
  void stop();

  int port() const;
  int threads() const;
  boost::asio::io_context& context(int thread);

  int connections() const;
  int busy_connections() const;  // with a request under way
  // Takes no new connection or request; those under way go on.
  void drain();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vamp
