// One HTTP request as a client: Asio's coroutines, in the clear.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/units.h"
#include "replay/server_url.h"

namespace vamp {

// A server that was found to answer.
struct RemoteServer {
  ServerUrl url;
  boost::asio::ip::tcp::resolver::results_type endpoints;
  std::string model;               // that requests name
  std::string api_key;             // empty: none is sent
  Micros silence = 600 * kSecond;  // a request fails when the server has said nothing for so long
};

struct HttpCall {
  std::string path;
  std::string body;  // empty: GET, else POST of JSON
  std::vector<std::pair<std::string, std::string>> headers;
};

// On a connection of its own, which `stream` holds. `on_body` is told the body of an answer with
// status 200 as it comes. Throws Error: what was being done and why it failed, for another status
// the server's own message.
boost::asio::awaitable<void> http_call(boost::beast::tcp_stream& stream, const RemoteServer& server,
                                       const HttpCall& call,
                                       const std::function<void(std::string_view)>& on_body);

// Looks the server up and asks which models it has. `model` empty: the first of them. Blocks.
// Throws Error naming --url.
RemoteServer find_server(const ServerUrl& url, const std::string& model, const std::string& api_key,
                         Micros silence);

}  // namespace vamp
