#include "server/http/connection.h"

#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/socket.h>

#include <boost/asio/read.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <boost/beast/http/string_body.hpp>

namespace vamp {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;
using Parser = http::request_parser<http::string_body>;

constexpr size_t kReadBytes = 64 << 10;   // of a body at a time
constexpr size_t kLingerBytes = 8 << 20;  // of a refused body, read and thrown away
constexpr double kLingerSeconds = 2;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

HttpRequest head_of(const Parser::value_type& message) {
  HttpRequest request;
  request.method = std::string(message.method_string());
  const std::string_view target(message.target().data(), message.target().size());
  const size_t mark = std::min(target.find('?'), target.size());
  request.path = std::string(target.substr(0, mark));
  if (mark < target.size()) request.query = std::string(target.substr(mark + 1));
  for (const auto& field : message) {
    request.headers.emplace_back(lower({field.name_string().data(), field.name_string().size()}),
                                 std::string(field.value()));
  }
  return request;
}

// The status that a fault of the request itself deserves; 0: the connection is broken.
int status_of(const error_code& error) {
  if (error == http::error::header_limit || error == http::error::buffer_overflow) return 431;
  if (error == http::error::body_limit) return 413;
  if (error == http::error::end_of_stream || error == http::error::partial_message) return 0;
  return error.category() == make_error_code(http::error::bad_target).category() ? 400 : 0;
}

std::string fault_text(int status, const error_code& error, const HttpOptions& options) {
  if (status == 431)
    return fmt::format("the headers exceed --max-header-bytes, {} bytes", options.max_header_bytes);
  if (status == 413)
    return fmt::format("the body exceeds --max-body-bytes, {} bytes", options.max_body_bytes);
  return fmt::format("not an HTTP request: {}", error.message());
}

}  // namespace

Connection::Connection(Transport::Socket socket, asio::ssl::context* tls,
                       const HttpOptions& options, HttpHandler& handler)
    : transport_(std::move(socket), tls),
      options_(options),
      handler_(handler),
      buffer_(options.max_header_bytes + kReadBytes) {}

void Connection::set_deadline(double seconds) {
  deadline_ = std::chrono::steady_clock::now() +
              std::chrono::milliseconds(static_cast<int64_t>(seconds * 1e3));
}

asio::awaitable<void> Connection::run() {
  try {
    if (transport_.encrypted()) {
      set_deadline(options_.header_seconds);
      co_await transport_.tls().async_handshake(asio::ssl::stream_base::server,
                                                asio::use_awaitable);
    }
    while (!draining_) {
      HttpRequest request;
      const ReadResult result = co_await read_request(request);
      if (result == ReadResult::kRequest)
        co_await answer(std::move(request));
      else if (result != ReadResult::kAnswered)
        break;
      busy_ = false;
      if (!keep_alive_ || gone_) break;
    }
  } catch (const boost::system::system_error&) {
    // The client is gone: there is nobody to tell.
  } catch (const std::exception& error) {
    spdlog::error("a connection is closed: {}", error.what());
  }
  busy_ = false;
  abort();
}

asio::awaitable<void> Connection::run_refused() {
  try {
    busy_ = true;
    HttpResponse response = handler_.fault(503, "too many connections: see --max-connections", {});
    response.headers.emplace_back("Retry-After", "1");
    co_await refuse(std::move(response));
  } catch (const std::exception&) {
  }
  busy_ = false;
  abort();
}

asio::awaitable<Connection::ReadResult> Connection::read_request(HttpRequest& request) {
  error_code error;
  const auto token = [&error] { return asio::redirect_error(asio::use_awaitable, error); };
  waiting_ = true;
  timed_out_ = false;
  headers_.clear();
  set_deadline(options_.idle_seconds);
  if (buffer_.size() == 0) {
    buffer_.shrink_to_fit();
    // Nothing is allocated for a connection that says nothing.
    if (!transport_.encrypted()) {
      co_await transport_.socket().async_wait(asio::socket_base::wait_read, token());
      if (error) co_return ReadResult::kClosed;
    }
  }
  // Under TLS the socket's bytes are not yet the client's words: the idle time covers the headers.
  if (!transport_.encrypted()) {
    waiting_ = false;
    set_deadline(options_.header_seconds);
  }

  Parser parser;
  parser.header_limit(static_cast<std::uint32_t>(options_.max_header_bytes));
  parser.body_limit(options_.max_body_bytes);
  co_await http::async_read_header(transport_, buffer_, parser, token());
  busy_ = !error;
  if (!error) {
    request = head_of(parser.get());
    http_1_0_ = parser.get().version() < 11;
    // A body of unknown length is no next request.
    const bool endless = request.header("transfer-encoding") && parser.is_done();
    keep_alive_ = parser.keep_alive() && !endless;
    head_only_ = request.method == "HEAD";
    if (auto refusal = handler_.refuse(request)) {
      if (parser.is_done()) {  // no body: the connection stays usable
        started_ = streaming_ = false;
        co_await reply(std::move(*refusal));
        co_return ReadResult::kAnswered;
      } else {
        co_await refuse(std::move(*refusal));
      }
      co_return ReadResult::kRefused;
    }
    const std::string* expect = request.header("expect");
    if (expect && lower(*expect) == "100-continue") {
      co_await send("HTTP/1.1 100 Continue\r\n\r\n");
    }
    set_deadline(options_.body_seconds);
    co_await http::async_read(transport_, buffer_, parser, token());
  }
  deadline_ = Time::max();
  if (!error) {
    request.body = std::move(parser.get().body());
    co_return ReadResult::kRequest;
  }
  busy_ = true;
  const int status = timed_out_ ? 408 : status_of(error);
  if (status != 0) {
    const std::string text = timed_out_ ? std::string("the request took too long to arrive")
                                        : fault_text(status, error, options_);
    co_await refuse(handler_.fault(status, text, request.path));
  }
  co_return ReadResult::kRefused;
}

asio::awaitable<void> Connection::answer(HttpRequest request) {
  started_ = streaming_ = gone_ = false;
  last_write_ = std::chrono::steady_clock::now();
  unread_data_ = buffer_.size() > 0;
  if (!unread_data_) watch_client();
  const std::string path = request.path;
  std::string fault;
  try {
    co_await handler_.handle(std::move(request), *this);
  } catch (const boost::system::system_error&) {
    wake_ = nullptr;
    throw;
  } catch (const std::exception& error) {
    fault = error.what();
  }
  wake_ = nullptr;
  if (streaming_) keep_alive_ = false;  // it broke off: only the end of the connection says so
  if (fault.empty()) co_return;
  spdlog::error("a request failed: {}", fault);
  keep_alive_ = false;
  if (!started_) co_await reply(handler_.fault(500, fault, path));
}

// For a request whose body was not read to its end: the connection cannot go on.
asio::awaitable<void> Connection::refuse(HttpResponse response) {
  keep_alive_ = false;
  started_ = streaming_ = false;
  co_await reply(std::move(response));
  co_await linger();
}

// Closing with data unread would reset the connection, and the client might never see the answer.
asio::awaitable<void> Connection::linger() {
  if (transport_.encrypted()) co_return;
  error_code error;
  transport_.socket().shutdown(asio::socket_base::shutdown_send, error);
  set_deadline(kLingerSeconds);
  std::string scratch(kReadBytes, '\0');
  for (size_t read = 0; !error && read < kLingerBytes;) {
    read += co_await transport_.async_read_some(asio::buffer(scratch),
                                                asio::redirect_error(asio::use_awaitable, error));
  }
}

std::string Connection::head(int status, const std::string& content_type,
                             const HttpHeaders& headers) const {
  const std::string_view reason = http::obsolete_reason(static_cast<http::status>(status));
  std::string text = fmt::format("HTTP/1.1 {} {}\r\nServer: vamp\r\n", status, reason);
  if (!content_type.empty()) text += fmt::format("Content-Type: {}\r\n", content_type);
  for (const HttpHeaders* list : {&headers, &headers_}) {
    for (const auto& [name, value] : *list) text += fmt::format("{}: {}\r\n", name, value);
  }
  if (!keep_alive_) {
    text += "Connection: close\r\n";
  } else if (http_1_0_) {
    text += "Connection: keep-alive\r\n";
  }
  return text;
}

asio::awaitable<void> Connection::reply(HttpResponse response) {
  if (draining_) keep_alive_ = false;
  std::string text = head(response.status, response.content_type, response.headers);
  text += fmt::format("Content-Length: {}\r\n\r\n", response.body.size());
  if (!head_only_) text += response.body;
  started_ = true;
  co_await send(std::move(text));
}

asio::awaitable<void> Connection::begin_stream(std::string content_type) {
  if (draining_ || http_1_0_) keep_alive_ = false;
  HttpHeaders headers;
  headers.emplace_back("Cache-Control", "no-cache");
  std::string text = head(200, content_type, headers);
  text += http_1_0_ ? "\r\n" : "Transfer-Encoding: chunked\r\n\r\n";
  started_ = streaming_ = true;
  co_await send(std::move(text));
}

asio::awaitable<void> Connection::write(std::string_view piece) {
  if (piece.empty()) co_return;
  if (gone_) throw boost::system::system_error(asio::error::connection_reset);
  out_.clear();
  if (!http_1_0_) fmt::format_to(std::back_inserter(out_), "{:x}\r\n", piece.size());
  out_ += piece;
  if (!http_1_0_) out_ += "\r\n";
  error_code error;
  const size_t sent = transport_.write_now(out_, error);
  if (error) throw boost::system::system_error(error);
  if (sent == out_.size()) {
    last_write_ = std::chrono::steady_clock::now();
    co_return;
  }
  out_.erase(0, sent);
  co_await send(std::move(out_));
}

asio::awaitable<void> Connection::end_stream() {
  streaming_ = false;
  if (!http_1_0_) co_await send("0\r\n\r\n");
}

asio::awaitable<void> Connection::send(std::string data) {
  if (gone_) throw boost::system::system_error(asio::error::connection_reset);
  // A client that takes some, if slowly, is not cut off: the limit counts from its last progress.
  for (size_t sent = 0; sent < data.size();) {
    set_deadline(options_.write_seconds);
    const auto rest = asio::buffer(data.data() + sent, data.size() - sent);
    sent += co_await transport_.async_write_some(rest, asio::use_awaitable);
  }
  deadline_ = Time::max();
  last_write_ = std::chrono::steady_clock::now();
}

void Connection::watch_client() {
  if (watching_) return;
  watching_ = true;
  transport_.socket().async_wait(asio::socket_base::wait_read,
                                 [self = shared_from_this()](const error_code& error) {
                                   self->watching_ = false;
                                   if (!error && self->busy_) self->client_data();
                                 });
}

// The client closed its end, or sent more before the answer to the last request.
void Connection::client_data() {
  char byte;
  const ssize_t got = recv(transport_.socket().native_handle(), &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got > 0) {
    unread_data_ = true;
  } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) {
    watch_client();
  } else {
    client_left();
  }
}

void Connection::client_left() {
  if (gone_) return;
  gone_ = true;
  // A write that waits for this client ends now.
  error_code ignored;
  transport_.socket().cancel(ignored);
  wake();
}

void Connection::cut_off(const std::string& why) {
  if (gone_) return;
  error_code ignored;
  spdlog::warn("the client at {} is cut off: {}",
               transport_.socket().remote_endpoint(ignored).address().to_string(), why);
  client_left();
}

// Whoever is woken may replace wake_ meanwhile.
void Connection::wake() {
  const auto told = wake_;
  if (told) told();
}

bool Connection::silent() const {
  return std::chrono::steady_clock::now() - last_write_ >
         std::chrono::duration<double>(options_.keep_alive_seconds);
}

void Connection::tick(Time now) {
  if (now >= deadline_) {
    deadline_ = Time::max();
    timed_out_ = true;
    error_code ignored;
    transport_.socket().cancel(ignored);
    if (started_ && busy_) {
      cut_off(fmt::format("it took nothing of its answer for {:g} s, --write-timeout",
                          options_.write_seconds));
    }
    return;
  }
  if (!busy_ || gone_) return;
  if (unread_data_) {
    pollfd ask{transport_.socket().native_handle(), POLLRDHUP, 0};
    if (poll(&ask, 1, 0) > 0 && (ask.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
      client_left();
      return;
    }
  }
  if (silent()) wake();
}

void Connection::drain() {
  draining_ = true;
  if (!busy_ && waiting_) abort();
}

void Connection::abort() {
  error_code ignored;
  transport_.socket().shutdown(asio::socket_base::shutdown_both, ignored);
  transport_.socket().close(ignored);
}

}  // namespace vamp
