#include "replay/http_call.h"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "replay/completion_stream.h"

namespace vamp {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr size_t kFaultBytes = 64 << 10;         // of a fault's body that are read
constexpr Micros kLongestSearch = 30 * kSecond;  // for a server, before the first run

std::string fault_text(const char* doing, const boost::system::error_code& error,
                       const RemoteServer& server) {
  if (error == beast::error::timeout)
    return fmt::format("{}: the server said nothing for {:g} s", doing, server.silence / kSecond);
  if (error == http::error::end_of_stream || error == http::error::partial_message)
    return fmt::format("{}: the server closed the connection", doing);
  return fmt::format("{}: {}", doing, error.message());
}

http::request<http::string_body> make_request(const RemoteServer& server, const HttpCall& call) {
  http::request<http::string_body> request(call.body.empty() ? http::verb::get : http::verb::post,
                                           server.url.prefix + call.path, 11);
  const std::string& host = server.url.host;
  const bool ipv6 = host.find(':') != std::string::npos;
  request.set(http::field::host, (ipv6 ? "[" + host + "]" : host) + ":" + server.url.port);
  request.set(http::field::user_agent, "vamp-replay");
  request.set(http::field::connection, "close");
  if (!call.body.empty()) request.set(http::field::content_type, "application/json");
  if (!server.api_key.empty()) request.set(http::field::authorization, "Bearer " + server.api_key);
  for (const auto& [name, value] : call.headers) request.set(name, value);
  request.body() = call.body;
  request.prepare_payload();
  return request;
}

// Its first model's name.
std::string first_model(const std::string& body) {
  const nlohmann::json json = nlohmann::json::parse(body, nullptr, false);
  const nlohmann::json::json_pointer place("/data/0/id");
  if (json.is_discarded() || !json.contains(place) || !json[place].is_string())
    throw Error("no model is named; name it with --served-model-name");
  return json[place].get<std::string>();
}

}  // namespace

asio::awaitable<void> http_call(beast::tcp_stream& stream, const RemoteServer& server,
                                const HttpCall& call,
                                const std::function<void(std::string_view)>& on_body) {
  const auto limit = std::chrono::microseconds(static_cast<int64_t>(server.silence));
  const char* doing = "cannot connect";
  try {
    stream.expires_after(limit);
    co_await stream.async_connect(server.endpoints, asio::use_awaitable);
    stream.socket().set_option(asio::ip::tcp::no_delay(true));
    doing = "while sending";
    const http::request<http::string_body> request = make_request(server, call);
    stream.expires_after(limit);
    co_await http::async_write(stream, request, asio::use_awaitable);
    doing = "before an answer";
    beast::flat_buffer buffer;
    http::response_parser<http::string_body> parser;
    parser.body_limit(boost::none);
    stream.expires_after(limit);
    co_await http::async_read_header(stream, buffer, parser, asio::use_awaitable);
    const unsigned status = parser.get().result_int();
    std::string& body = parser.get().body();
    doing = "in the middle of the answer";
    while (!parser.is_done() && (status == 200 || body.size() < kFaultBytes)) {
      stream.expires_after(limit);
      co_await http::async_read_some(stream, buffer, parser, asio::use_awaitable);
      if (status != 200) continue;
      on_body(body);
      body.clear();
    }
    if (status != 200) throw Error("HTTP {}: {}", status, server_fault(body));
  } catch (const boost::system::system_error& error) {
    throw Error("{}", fault_text(doing, error.code(), server));
  }
}

RemoteServer find_server(const ServerUrl& url, const std::string& model, const std::string& api_key,
                         Micros silence) {
  RemoteServer server{url, {}, model, api_key, std::min(silence, kLongestSearch)};
  asio::io_context io;
  boost::system::error_code error;
  server.endpoints = asio::ip::tcp::resolver(io).resolve(url.host, url.port, error);
  if (error) throw Error("--url {}: no such host: {}", url.text, error.message());
  beast::tcp_stream stream(io);
  const HttpCall call{"/v1/models", "", {}};
  std::string body;
  const std::function<void(std::string_view)> on_body = [&](std::string_view part) {
    body += part;
  };
  std::exception_ptr fault;
  asio::co_spawn(io, http_call(stream, server, call, on_body),
                 [&fault](std::exception_ptr thrown) { fault = std::move(thrown); });
  io.run();
  try {
    if (fault) std::rethrow_exception(fault);
    if (model.empty()) server.model = first_model(body);
  } catch (const Error& why) {
    const std::string_view text = why.what();
    const bool named = !model.empty() && text.starts_with("HTTP 404");  // a server without a list
    if (!named)
      throw Error("--url {}: /v1/models: {}{}", url.text, text,
                  text.starts_with("HTTP 401") ? "; set the environment's VAMP_API_KEY" : "");
  }
  server.silence = silence;
  return server;
}

}  // namespace vamp
