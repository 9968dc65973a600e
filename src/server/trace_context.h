// W3C Trace Context: a request's place in a trace that its client keeps.
#pragma once

#include <optional>
#include <string>

#include "server/http/message.h"

namespace vamp {

struct TraceContext {
  std::string trace_id, parent_id;  // the client's
  std::string span_id;              // ours, new
  std::string flags;
  std::string state;  // tracestate, as it came; empty: none

  bool sampled() const { return flags == "01"; }
  std::string traceparent() const;  // of what we would call in turn
};

// Of `traceparent` and `tracestate`; none where the first is absent, given twice or malformed.
std::optional<TraceContext> read_trace_context(const HttpRequest& request);

}  // namespace vamp
