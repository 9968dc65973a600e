#include "server/api/request_span.h"

#include "server/api/request_common.h"
#include "server/trace_context.h"

namespace vamp {
namespace {

uint64_t unix_ns(std::chrono::system_clock::time_point time) {
  return static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count());
}

}  // namespace

RequestSpan::~RequestSpan() {
  SpanExporter* exporter = service_.spans();
  if (!exporter || (request_.trace && !request_.trace->sampled())) return;
  try {
    exporter->add(span());
  } catch (const std::bad_alloc&) {  // one span less
  }
}

// Names as vLLM has them.
Span RequestSpan::span() const {
  Span span;
  if (request_.trace) {
    span.trace_id = request_.trace->trace_id;
    span.span_id = request_.trace->span_id;
    span.parent_id = request_.trace->parent_id;
  } else {
    span.trace_id = random_hex(16);
    span.span_id = random_hex(8);
  }
  span.start_ns = unix_ns(start_);
  span.end_ns = unix_ns(std::chrono::system_clock::now());
  const auto add = [&](const char* key, Span::Value value) {
    span.attributes.emplace_back(key, std::move(value));
  };
  const SamplingParams& sampling = request_.sampling;
  add("gen_ai.request.id", id_);
  add("gen_ai.response.model", shown_model(service_));
  add("gen_ai.request.max_tokens", int64_t{sampling.max_tokens});
  add("gen_ai.request.temperature", double{sampling.temperature});
  add("gen_ai.request.top_p", double{sampling.top_p});
  add("gen_ai.request.n", int64_t{request_.n});
  add("gen_ai.usage.prompt_tokens", int64_t{generation_.prompt_tokens()});
  add("gen_ai.usage.completion_tokens", int64_t{generation_.completion_tokens()});
  const GenerationTimes& times = generation_.times();
  const auto add_time = [&](const char* key, Micros time) { add(key, time / kSecond); };
  if (times.queued) add_time("gen_ai.latency.time_in_queue", *times.queued);
  if (times.first_token)
    add_time("gen_ai.latency.time_to_first_token", *times.first_token - times.start);
  add_time("gen_ai.latency.e2e", service_.bridge().now() - times.start);
  span.error = generation_.error();
  if (span.error.empty() && !generation_.finished()) span.error = "the client has gone";
  return span;
}

}  // namespace vamp
