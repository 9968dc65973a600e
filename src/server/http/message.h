// HTTP as handlers see it: a whole request in, a response or a stream of pieces out.
#pragma once

#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/awaitable.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vamp {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct TraceContext;

struct HttpRequest {
  std::string method;   // as written: "GET"
  std::string path;     // of the target, without query
  std::string query;    // behind '?'
  HttpHeaders headers;  // names in lower case
  std::string body;
  std::shared_ptr<const TraceContext> trace;  // null: the caller traces nothing

  // Null when there is none; the first when there are several. `name` in lower case.
  const std::string* header(std::string_view name) const {
    for (const auto& [key, value] : headers) {
      if (key == name) return &value;
    }
    return nullptr;
  }
};

struct HttpResponse {
  int status = 200;
  std::string body;
  std::string content_type = "application/json";
  HttpHeaders headers = {};
};

// The way back to the client of one request. Used on the connection's own thread only. Throws
// boost::system::system_error once the client is gone.
class HttpExchange {
 public:
  virtual ~HttpExchange() = default;
  virtual boost::asio::any_io_executor executor() = 0;

  // Of the response to come, whichever way it comes.
  virtual void add_header(std::string name, std::string value) = 0;

  virtual boost::asio::awaitable<void> reply(HttpResponse response) = 0;

  // Instead: a response in pieces, each sent at once.
  virtual boost::asio::awaitable<void> begin_stream(std::string content_type) = 0;
  virtual boost::asio::awaitable<void> write(std::string_view piece) = 0;
  virtual boost::asio::awaitable<void> end_stream() = 0;

  // The response has begun: no other can be sent.
  virtual bool started() const = 0;
  // The client has closed its end, or was cut off.
  virtual bool gone() const = 0;
  // Ends the connection as if the client had closed it; the log says why.
  virtual void cut_off(const std::string& why) = 0;
  // `wake` is called when the client goes away, and when nothing was sent for the keep-alive
  // interval. Replaced by the next call; empty: nobody is told.
  virtual void on_wake(std::function<void()> wake) = 0;
  // True when nothing was sent for the keep-alive interval.
  virtual bool silent() const = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Looks at a request's line and headers before its body is read; a response refuses it.
  virtual std::optional<HttpResponse> refuse(const HttpRequest& head) = 0;
  // Answers through the exchange. An exception before the response has begun becomes a 500.
  virtual boost::asio::awaitable<void> handle(HttpRequest request, HttpExchange& exchange) = 0;
  // The response for a fault of HTTP itself (400, 408, 413, 431, 503), or of a handler (500).
  // `path` is empty where it is not known.
  virtual HttpResponse fault(int status, const std::string& message, std::string_view path) = 0;
};

struct HttpOptions {
  std::string host = "127.0.0.1";
  int port = 8000;  // 0: any free one
  int threads = 1;
  size_t max_header_bytes = 64 << 10;
  size_t max_body_bytes = 64 << 20;
  double header_seconds = 10;      // for a request's line and headers, and for TLS' handshake
  double body_seconds = 60;        // for its body
  double write_seconds = 60;       // a client that takes nothing for so long is dropped
  double idle_seconds = 75;        // between two requests of a connection
  double keep_alive_seconds = 15;  // a silent stream gets a sign of life so often
  int max_connections = 4096;
  std::string tls_certificate, tls_key;  // PEM files; both or none
};

}  // namespace vamp
