#include "server/trace_context.h"

#include <fmt/format.h>

#include <algorithm>

#include "server/api/request_common.h"

namespace vamp {
namespace {

constexpr size_t kLength = 55;  // of version 00: 2-32-16-2 hexadecimal digits
constexpr size_t kMaxState = 512;

bool hexadecimal(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool zero(std::string_view text) {
  return text.find_first_not_of('0') == std::string_view::npos;
}

// Several headers are one list. What cannot be a list is dropped, and the trace goes on without.
std::string read_state(const HttpRequest& request) {
  std::string state;
  for (const auto& [name, value] : request.headers) {
    if (name != "tracestate" || value.empty()) continue;
    if (!state.empty()) state += ',';
    state += value;
  }
  const bool plain = std::all_of(state.begin(), state.end(),
                                 [](char c) { return c == '\t' || (c >= ' ' && c <= '~'); });
  return plain && state.size() <= kMaxState ? state : std::string();
}

}  // namespace

std::string TraceContext::traceparent() const {
  return fmt::format("00-{}-{}-{}", trace_id, span_id, flags);
}

std::optional<TraceContext> read_trace_context(const HttpRequest& request) {
  const auto given = [](const auto& header) { return header.first == "traceparent"; };
  if (std::count_if(request.headers.begin(), request.headers.end(), given) != 1)
    return std::nullopt;
  const std::string_view text = *request.header("traceparent");
  if (text.size() < kLength || text[2] != '-' || text[35] != '-' || text[52] != '-')
    return std::nullopt;
  const std::string_view version = text.substr(0, 2), trace = text.substr(3, 32),
                         parent = text.substr(36, 16), flags = text.substr(53, 2);
  if (!hexadecimal(version) || !hexadecimal(trace) || !hexadecimal(parent) || !hexadecimal(flags))
    return std::nullopt;
  // Versions to come may have more behind, and are read as far as this one goes.
  const bool more = text.size() > kLength;
  if (version == "ff" || (more && (version == "00" || text[kLength] != '-'))) return std::nullopt;
  if (zero(trace) || zero(parent)) return std::nullopt;
  TraceContext context;
  context.trace_id = trace;
  context.parent_id = parent;
  context.span_id = random_hex(8);
  // Of the flags, only "sampled" is passed on: we know no other.
  context.flags =
      std::string_view("13579bdf").find(flags[1]) == std::string_view::npos ? "00" : "01";
  context.state = read_state(request);
  return context;
}

}  // namespace vamp
