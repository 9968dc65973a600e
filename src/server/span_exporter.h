// Spans of requests to an OpenTelemetry collector: OTLP over HTTP, as JSON.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace vamp {

struct Span {
  using Value = std::variant<std::string, int64_t, double>;
  std::string trace_id, span_id, parent_id;  // hexadecimal; the parent may be empty
  uint64_t start_ns = 0, end_ns = 0;         // since 1970
  std::vector<std::pair<const char*, Value>> attributes;
  std::string error;  // empty: it went well
};

// Sends from a thread of its own, in batches. Never makes a caller wait: what does not fit into the
// queue, or a collector does not take, is lost, and the log counts it. add() from any thread.
class SpanExporter {
 public:
  // `url`: "http://HOST:PORT", and a path unless it is /v1/traces. Throws Error naming the flag.
  explicit SpanExporter(const std::string& url);
  // Sends what is left, if the collector takes it at once.
  ~SpanExporter();

  void add(Span span) noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vamp
