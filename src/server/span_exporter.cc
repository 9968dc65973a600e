#include "server/span_exporter.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "base/error.h"
#include "server/api/fields.h"

namespace vamp {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;

constexpr const char* kFlag = "--otlp-traces-endpoint";
constexpr size_t kMostQueued = 4096, kMostInBatch = 512;
constexpr auto kBatchTime = std::chrono::seconds(1);  // a batch is as old at most
constexpr auto kSendTime = std::chrono::seconds(2), kLastSendTime = std::chrono::seconds(1);

struct Endpoint {
  std::string host, port = "4318", path = "/v1/traces";
};

Endpoint parse_endpoint(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  if (!url.starts_with(kScheme)) {
    throw Error("{} {}: use http://HOST:PORT of a collector's OTLP/HTTP receiver (port 4318)",
                kFlag, url);
  }
  Endpoint endpoint;
  std::string place = url.substr(kScheme.size());
  if (const size_t slash = place.find('/'); slash != std::string::npos) {
    if (slash + 1 < place.size()) endpoint.path = place.substr(slash);
    place.resize(slash);
  }
  const size_t colon = place.rfind(':');
  if (colon != std::string::npos && place.find(']', colon) == std::string::npos) {
    endpoint.port = place.substr(colon + 1);
    place.resize(colon);
  }
  if (place.starts_with('[') && place.ends_with(']')) place = place.substr(1, place.size() - 2);
  const bool number = !endpoint.port.empty() && endpoint.port.size() <= 5 &&
                      endpoint.port.find_first_not_of("0123456789") == std::string::npos;
  if (place.empty() || !number || std::stoi(endpoint.port) > 65535)
    throw Error("{} {}: it names no host, or no port", kFlag, url);
  endpoint.host = place;
  return endpoint;
}

Json value_json(const Span::Value& value) {
  Json json;
  if (const auto* text = std::get_if<std::string>(&value)) {
    json["stringValue"] = *text;
  } else if (const auto* number = std::get_if<double>(&value)) {
    json["doubleValue"] = *number;
  } else {
    json["intValue"] = std::to_string(std::get<int64_t>(value));  // 64 bits are text in JSON
  }
  return json;
}

Json attribute_json(const char* key, const Span::Value& value) {
  return {{"key", key}, {"value", value_json(value)}};
}

Json span_json(const Span& span) {
  constexpr int kServer = 2, kError = 2;  // of OTLP's enumerations
  Json json = {{"traceId", span.trace_id},
               {"spanId", span.span_id},
               {"name", "llm_request"},
               {"kind", kServer},
               {"startTimeUnixNano", std::to_string(span.start_ns)},
               {"endTimeUnixNano", std::to_string(span.end_ns)},
               {"attributes", Json::array()},
               {"status", Json::object()}};
  if (!span.parent_id.empty()) json["parentSpanId"] = span.parent_id;
  for (const auto& [key, value] : span.attributes)
    json["attributes"].push_back(attribute_json(key, value));
  if (!span.error.empty()) json["status"] = {{"code", kError}, {"message", span.error}};
  return json;
}

std::string batch_text(const std::vector<Span>& spans) {
  Json scope = {{"scope", {{"name", "vamp"}, {"version", VAMP_VERSION}}}, {"spans", Json::array()}};
  for (const Span& span : spans) scope["spans"].push_back(span_json(span));
  Json resource = {{"resource", {{"attributes", Json::array()}}}, {"scopeSpans", Json::array()}};
  resource["resource"]["attributes"].push_back(attribute_json("service.name", std::string("vamp")));
  resource["scopeSpans"].push_back(std::move(scope));
  Json json = {{"resourceSpans", Json::array()}};
  json["resourceSpans"].push_back(std::move(resource));
  return dump(json);
}

// One request on a connection of its own: a second's worth of spans is worth that. Throws.
void post(const Endpoint& endpoint, std::string body, std::chrono::seconds limit) {
  asio::io_context io;
  beast::tcp_stream stream(io);
  http::request<http::string_body> request(http::verb::post, endpoint.path, 11);
  request.set(http::field::host, endpoint.host + ":" + endpoint.port);
  request.set(http::field::content_type, "application/json");
  request.set(http::field::connection, "close");
  request.body() = std::move(body);
  request.prepare_payload();
  beast::flat_buffer buffer;
  http::response<http::string_body> response;
  boost::system::error_code fault;
  const auto then = [&fault](auto next) {
    return [&fault, next](const boost::system::error_code& error, auto&&...) {
      fault = error;
      if (!error) next();
    };
  };
  stream.expires_after(limit);
  const auto endpoints = asio::ip::tcp::resolver(io).resolve(endpoint.host, endpoint.port);
  stream.async_connect(
      endpoints, then([&] {
        http::async_write(stream, request,
                          then([&] { http::async_read(stream, buffer, response, then([] {})); }));
      }));
  io.run();
  if (fault) throw Error("{}", fault.message());
  if (response.result_int() / 100 != 2) throw Error("HTTP {}", response.result_int());
}

}  // namespace

struct SpanExporter::Impl {
  explicit Impl(const std::string& url) : endpoint(parse_endpoint(url)) {
    thread = std::thread([this] { run(); });
  }

  void run() {
    bool last = false;
    while (!last) {
      std::vector<Span> batch;
      {
        std::unique_lock lock(mutex);
        ready.wait_for(lock, kBatchTime,
                       [this] { return stopping || queue.size() >= kMostInBatch; });
        last = stopping;
        batch.swap(queue);
      }
      for (size_t begin = 0; begin < batch.size(); begin += kMostInBatch) {
        const size_t end = std::min(batch.size(), begin + kMostInBatch);
        if (last && failing) {
          lost += batch.size() - begin;
          break;
        }
        send({std::make_move_iterator(batch.begin() + static_cast<std::ptrdiff_t>(begin)),
              std::make_move_iterator(batch.begin() + static_cast<std::ptrdiff_t>(end))},
             last ? kLastSendTime : kSendTime);
      }
    }
    if (lost > 0) spdlog::warn("{}: {} spans were lost in all", kFlag, lost.load());
  }

  // The log hears of it when it begins and when it is over.
  void send(const std::vector<Span>& spans, std::chrono::seconds limit) {
    try {
      post(endpoint, batch_text(spans), limit);
      if (std::exchange(failing, false)) spdlog::info("{}: spans are taken again", kFlag);
    } catch (const std::exception& error) {
      lost += spans.size();
      if (!std::exchange(failing, true))
        spdlog::warn("{}: spans are lost: {}", kFlag, error.what());
    }
  }

  const Endpoint endpoint;
  std::mutex mutex;
  std::condition_variable ready;
  std::vector<Span> queue;
  bool stopping = false;
  bool failing = false;  // the thread's own
  std::atomic<uint64_t> lost = 0;
  std::thread thread;
};

SpanExporter::SpanExporter(const std::string& url) : impl_(std::make_unique<Impl>(url)) {}

SpanExporter::~SpanExporter() {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->ready.notify_one();
  impl_->thread.join();
}

void SpanExporter::add(Span span) noexcept {
  const std::lock_guard lock(impl_->mutex);
  try {
    if (impl_->queue.size() < kMostQueued) {
      impl_->queue.push_back(std::move(span));
    } else {
      ++impl_->lost;
    }
  } catch (const std::bad_alloc&) {
    ++impl_->lost;
  }
  if (impl_->queue.size() == kMostInBatch) impl_->ready.notify_one();
}

}  // namespace vamp
