// A TCP socket, in the clear or with TLS over it: one type for the rest of the session code.
#pragma once

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <memory>
#include <utility>

namespace vamp {

// An AsyncReadStream and AsyncWriteStream in Asio's sense. Used on the socket's thread only.
class Transport {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using executor_type = Socket::executor_type;
  using Signature = void(boost::system::error_code, size_t);

  // `tls` may be null; else it must outlive this.
  Transport(Socket socket, boost::asio::ssl::context* tls) : socket_(std::move(socket)) {
    if (tls) tls_ = std::make_unique<Tls>(socket_, *tls);
  }

  executor_type get_executor() { return socket_.get_executor(); }
  Socket& socket() { return socket_; }
  bool encrypted() const { return tls_ != nullptr; }
  boost::asio::ssl::stream<Socket&>& tls() { return *tls_; }

  template <typename Buffers, typename Token>
  auto async_read_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, Signature>(
        [this](auto handler, const Buffers& into) {
          if (tls_) {
            tls_->async_read_some(into, std::move(handler));
          } else {
            socket_.async_read_some(into, std::move(handler));
          }
        },
        token, buffers);
  }

  template <typename Buffers, typename Token>
  auto async_write_some(const Buffers& buffers, Token&& token) {
    return boost::asio::async_initiate<Token, Signature>(
        [this](auto handler, const Buffers& from) {
          if (tls_) {
            tls_->async_write_some(from, std::move(handler));
          } else {
            socket_.async_write_some(from, std::move(handler));
          }
        },
        token, buffers);
  }

  // As much as goes without waiting; 0 under TLS, where only the asynchronous way is used.
  size_t write_now(std::string_view data, boost::system::error_code& error) {
    if (tls_) return 0;
    const size_t written = socket_.write_some(boost::asio::buffer(data), error);
    if (error == boost::asio::error::would_block) error = {};
    return written;
  }

 private:
  using Tls = boost::asio::ssl::stream<Socket&>;
  Socket socket_;
  std::unique_ptr<Tls> tls_;
};

}  // namespace vamp
