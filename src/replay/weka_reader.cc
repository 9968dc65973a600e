// WEKA sessions of coding agents: one JSON object a file (or a line) with "block_size",
// "hash_id_scope" ("local": ids of this session only, "global"), and "requests", each
//   {"t" (s), "in", "out", "hash_ids", "think_time" (s), "api_time" (s)}.
// An entry of type "subagent" holds requests of its own; they run in its place, the parent waits.
#include "base/error.h"
#include "replay/trace_row.h"

namespace vamp {
namespace {

struct Place {
  uint64_t scope = 0;
  int block_tokens = 0;
  double end = 0;  // s, of the request before
  bool first = true;
};

void read_requests(const TraceRow& parent, int depth, Place& place, TraceSession& session) {
  const nlohmann::json& requests = parent.array("requests");
  for (size_t r = 0; r < requests.size(); ++r) {
    const TraceRow row(requests[r], fmt::format("{} request {}", parent.where(), r + 1));
    if (row.has("requests")) {
      if (depth >= 8) row.fail("sub-agents are nested too deep");
      read_requests(row, depth + 1, place, session);
      continue;
    }
    TraceTurn turn;
    BlockPrompt prompt;
    prompt.tokens = static_cast<int>(row.integer("in", 1, kMaxTraceTokens));
    prompt.blocks = row.block_ids("hash_ids", place.scope);
    const int64_t whole = prompt.tokens / place.block_tokens;
    const int64_t ids = static_cast<int64_t>(prompt.blocks.size());
    if (ids != whole && ids != whole + 1) {
      row.fail(fmt::format("{} tokens make {} whole blocks of {}, but hash_ids holds {}",
                           prompt.tokens, whole, place.block_tokens, ids));
    }
    if (ids * place.block_tokens >= prompt.tokens + place.block_tokens) prompt.blocks.pop_back();
    turn.prompt = std::move(prompt);
    turn.output_tokens = std::max<int>(1, static_cast<int>(row.integer("out", 0, kMaxTraceTokens)));
    const double start = row.has("t") ? row.number("t", 0, 1e9) : place.end;
    if (row.has("think_time")) {
      turn.think = row.time("think_time", kSecond);
    } else if (!place.first) {
      turn.think = std::max(0.0, start - place.end) * kSecond;
    }
    place.first = false;
    place.end = start + (row.has("api_time") ? row.number("api_time", 0, 1e9) : 0);
    session.turns.push_back(std::move(turn));
  }
}

}  // namespace

Trace read_weka(const std::vector<TraceDocument>& documents, const TraceReadOptions& options) {
  Trace trace;
  const auto read_session = [&](const nlohmann::json& json, std::string where) {
    const TraceRow row(json, std::move(where));
    Place place;
    place.block_tokens = options.block_tokens > 0
                             ? options.block_tokens
                             : static_cast<int>(row.integer("block_size", 1, 1 << 16));
    if (trace.block_tokens != 0 && place.block_tokens != trace.block_tokens) {
      row.fail(fmt::format("block_size {} differs from {} before", place.block_tokens,
                           trace.block_tokens));
    }
    trace.block_tokens = place.block_tokens;
    const bool global = row.has("hash_id_scope") && row.string("hash_id_scope") == "global";
    place.scope = global ? 0 : trace.sessions.size() + 1;
    TraceSession session{
        row.has("id") ? row.string("id") : fmt::format("session-{}", trace.sessions.size()), {}};
    read_requests(row, 0, place, session);
    if (!session.turns.empty()) trace.sessions.push_back(std::move(session));
  };
  for (const TraceDocument& document : documents) {
    // One object over many lines, or one a line.
    const std::string_view text = document.text;
    const size_t end = std::min(text.find('\n'), text.size());
    if (nlohmann::json::accept(text.substr(0, end))) {
      for_each_line(document, read_session);
    } else {
      read_session(parse_json(text, document.name, 1), "trace " + document.name);
    }
  }
  complete_block_keys(trace);
  return trace;
}

}  // namespace vamp
