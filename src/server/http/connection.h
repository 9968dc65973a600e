// One client's connection: requests one after the other, each answered before the next is read.
#pragma once

#include <boost/beast/core/flat_buffer.hpp>
#include <chrono>
#include <memory>

#include "server/http/message.h"
#include "server/http/transport.h"

namespace vamp {

// Everything happens on one io thread, the one that the socket belongs to. Holds no timer of its
// own: the server calls tick() a few times a second, so that time limits cost a stream nothing.
class Connection final : public HttpExchange, public std::enable_shared_from_this<Connection> {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `options` and `handler` must outlive this.
  Connection(Transport::Socket socket, boost::asio::ssl::context* tls, const HttpOptions& options,
             HttpHandler& handler);

  // Until the client or a limit ends it.
  boost::asio::awaitable<void> run();
  // Answers 503 to a connection over the limit, and closes it.
  boost::asio::awaitable<void> run_refused();
  void tick(Time now);
  // No further request is taken: closes now when idle, else behind the response.
  void drain();
  void abort();
  bool busy() const { return busy_; }

  boost::asio::any_io_executor executor() override { return transport_.get_executor(); }
  void add_header(std::string name, std::string value) override {
    headers_.emplace_back(std::move(name), std::move(value));
  }
  boost::asio::awaitable<void> reply(HttpResponse response) override;
  boost::asio::awaitable<void> begin_stream(std::string content_type) override;
  boost::asio::awaitable<void> write(std::string_view piece) override;
  boost::asio::awaitable<void> end_stream() override;
  bool started() const override { return started_; }
  bool gone() const override { return gone_; }
  void cut_off(const std::string& why) override;
  void on_wake(std::function<void()> wake) override { wake_ = std::move(wake); }
  bool silent() const override;

 private:
  // kAnswered: refused, and the connection stays usable.
  enum class ReadResult { kRequest, kAnswered, kRefused, kClosed };

  boost::asio::awaitable<ReadResult> read_request(HttpRequest& request);
  boost::asio::awaitable<void> answer(HttpRequest request);
  boost::asio::awaitable<void> refuse(HttpResponse response);
  boost::asio::awaitable<void> send(std::string data);
  boost::asio::awaitable<void> linger();
  void watch_client();
  void client_data();
  void client_left();
  void wake();
  void set_deadline(double seconds);
  std::string head(int status, const std::string& content_type, const HttpHeaders& headers) const;

  Transport transport_;
  const HttpOptions& options_;
  HttpHandler& handler_;
  boost::beast::flat_buffer buffer_;
  Time deadline_ = Time::max(), last_write_{};
  std::function<void()> wake_;
  HttpHeaders headers_;    // of the response to come
  std::string out_;        // the piece being sent; kept for its storage
  bool http_1_0_ = false;  // no chunks then
  bool keep_alive_ = true, head_only_ = false;
  bool started_ = false, streaming_ = false;
  bool busy_ = false;    // between a request's first byte and the end of its response
  bool waiting_ = true;  // for a request's first byte
  bool gone_ = false, timed_out_ = false, draining_ = false;
  bool watching_ = false;     // a wait for readability is pending
  bool unread_data_ = false;  // the client has sent more: its leaving shows only by asking
};

}  // namespace vamp
