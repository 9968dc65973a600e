#include "replay/trace.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "replay/trace_row.h"

namespace vamp {
namespace {

struct NamedFormat {
  TraceFormat format;
  const char* name;
};
constexpr NamedFormat kFormats[] = {{TraceFormat::kMooncake, "mooncake"},
                                    {TraceFormat::kWeka, "weka"},
                                    {TraceFormat::kVllmMultiTurn, "vllm-multi-turn"},
                                    {TraceFormat::kLmcache, "lmcache"}};

// Told from the first JSON value of the first document: its first line where that is one, else all
// of it.
TraceFormat detect_format(const TraceDocument& document) {
  const std::string_view text = document.text;
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) throw Error("trace {}: is empty", document.name);
  if (text[begin] == '[') return TraceFormat::kVllmMultiTurn;
  const size_t end = std::min(text.find('\n', begin), text.size());
  nlohmann::json first = nlohmann::json::parse(text.substr(begin, end - begin), nullptr, false);
  if (first.is_discarded()) first = parse_json(text.substr(begin), document.name, 1);
  if (first.is_object()) {
    if (first.contains("requests")) return TraceFormat::kWeka;
    if (first.contains("input") && first.contains("session_id")) return TraceFormat::kLmcache;
    for (const char* field : {"input_length", "hash_ids", "messages", "text_input"}) {
      if (first.contains(field)) return TraceFormat::kMooncake;
    }
  }
  throw Error(
      "trace {} line 1: no known trace format (AIPerf or Mooncake rows, WEKA sessions, vLLM "
      "multi-turn "
      "conversations, LMCache rows); name it with --trace-format",
      document.name);
}

}  // namespace

const char* trace_format_name(TraceFormat format) {
  for (const NamedFormat& known : kFormats) {
    if (known.format == format) return known.name;
  }
  return "";
}

TraceFormat parse_trace_format(std::string_view name) {
  for (const NamedFormat& known : kFormats) {
    if (known.name == name) return known.format;
  }
  throw Error("--trace-format {}: unknown; use mooncake, weka, vllm-multi-turn or lmcache", name);
}

size_t Trace::num_turns() const {
  return std::accumulate(sessions.begin(), sessions.end(), size_t{0},
                         [](size_t sum, const TraceSession& s) { return sum + s.turns.size(); });
}

Trace parse_trace(const std::vector<TraceDocument>& documents, const TraceReadOptions& options) {
  if (documents.empty()) throw Error("trace: no documents");
  const TraceFormat format = options.format ? *options.format : detect_format(documents.front());
  Trace trace;
  switch (format) {
    case TraceFormat::kMooncake:
      trace = read_mooncake(documents, options);
      break;
    case TraceFormat::kWeka:
      trace = read_weka(documents, options);
      break;
    case TraceFormat::kVllmMultiTurn:
      trace = read_vllm_multi_turn(documents, options);
      break;
    case TraceFormat::kLmcache:
      trace = read_lmcache(documents, options);
      break;
  }
  trace.format = format;
  if (trace.sessions.empty()) throw Error("trace {}: holds no turn", documents.front().name);
  trace.arrivals_recorded =
      std::all_of(trace.sessions.begin(), trace.sessions.end(),
                  [](const TraceSession& s) { return s.turns.front().not_before.has_value(); });
  return trace;
}

void complete_block_keys(Trace& trace) {
  for (size_t s = 0; s < trace.sessions.size(); ++s) {
    std::vector<TraceTurn>& turns = trace.sessions[s].turns;
    for (size_t t = turns.size(); t-- > 0;) {
      auto& [keys, tokens] = std::get<BlockPrompt>(turns[t].prompt);
      const size_t count = keys.size();
      if (static_cast<int64_t>(count) * trace.block_tokens >= tokens) continue;
      uint64_t tail = own_block_key(s + 1, (uint64_t{1} << 40) + t);
      if (t + 1 < turns.size()) {
        const auto& next = std::get<BlockPrompt>(turns[t + 1].prompt).blocks;
        if (next.size() > count && std::equal(keys.begin(), keys.end(), next.begin()))
          tail = next[count];
      }
      keys.push_back(tail);
    }
  }
}

void select_sessions(Trace& trace, const TraceSelection& selection) {
  std::vector<TraceSession>& sessions = trace.sessions;
  const size_t drop = static_cast<size_t>(std::max(selection.drop_shortest, 0));
  if (drop >= sessions.size()) {
    throw Error("--drop-shortest {}: the trace has only {} sessions", drop, sessions.size());
  }
  for (size_t i = 0; i < drop; ++i) {
    const auto shortest = std::min_element(sessions.rbegin(), sessions.rend(),
                                           [](const TraceSession& a, const TraceSession& b) {
                                             return a.turns.size() < b.turns.size();
                                           });
    sessions.erase(std::next(shortest).base());
  }
  const size_t limit = static_cast<size_t>(selection.max_sessions);
  if (selection.max_sessions > 0 && limit < sessions.size()) sessions.resize(limit);
  for (TraceSession& session : sessions) {
    const size_t turns = static_cast<size_t>(selection.max_turns);
    if (selection.max_turns > 0 && turns < session.turns.size()) session.turns.resize(turns);
  }
}

void scale_tokens(Trace& trace, double scale) {
  if (trace.block_tokens == 0) {
    throw Error(
        "--token-scale: this trace holds text; cut it with --first-prompt-tokens and "
        "--turn-tokens");
  }
  const int scaled = static_cast<int>(std::lround(trace.block_tokens * scale));
  if (!(scale > 0 && scale <= 64) || scaled < 1) {
    throw Error("--token-scale {:g}: a block of {} tokens would become {}; use {:g} to 64", scale,
                trace.block_tokens, scaled, 1.0 / trace.block_tokens);
  }
  // Whole blocks stay whole, so that every shared prefix stays shared.
  const double exact = static_cast<double>(scaled) / trace.block_tokens;
  for (TraceSession& session : trace.sessions) {
    for (TraceTurn& turn : session.turns) {
      BlockPrompt& prompt = std::get<BlockPrompt>(turn.prompt);
      const int64_t covered = static_cast<int64_t>(prompt.blocks.size()) * scaled;
      const int64_t tokens = std::llround(prompt.tokens * exact);
      prompt.tokens = static_cast<int>(std::clamp<int64_t>(tokens, 1, covered));
      if (turn.output_tokens > 0) {
        turn.output_tokens = std::max(1, static_cast<int>(std::lround(turn.output_tokens * exact)));
      }
    }
  }
  trace.block_tokens = scaled;
}

Trace make_sweep(const SweepOptions& options) {
  VAMP_CHECK(options.kv_bytes_per_token > 0);
  const size_t tokens = options.kv_bytes_per_session / options.kv_bytes_per_token;
  const double total_blocks = static_cast<double>(tokens) / 16 * options.turns * options.sessions;
  if (tokens > kMaxTraceTokens || total_blocks > 1e9) {
    throw Error(
        "sweep: {} sessions of {} turns up to {} tokens are too much; use fewer KV bytes a "
        "session",
        options.sessions, options.turns, tokens);
  }
  const int end = static_cast<int>(tokens);
  const int first = static_cast<int>(end * options.first_share);
  const int last = end - options.output_tokens;  // prompt of the last turn
  if (options.sessions < 1 || options.turns < 2 || first < 1 || last <= first) {
    throw Error(
        "sweep: {} sessions of {} turns from {} to {} prompt tokens; it needs at least 1 session, "
        "2 turns, "
        "and growth: raise the KV bytes a session",
        options.sessions, options.turns, first, last);
  }
  Trace trace;
  trace.block_tokens = 16;
  for (int s = 0; s < options.sessions; ++s) {
    TraceSession session{"sweep-" + std::to_string(s), {}};
    for (int t = 0; t < options.turns; ++t) {
      BlockPrompt prompt;
      prompt.tokens =
          first + static_cast<int>(static_cast<int64_t>(last - first) * t / (options.turns - 1));
      const int blocks = (prompt.tokens + trace.block_tokens - 1) / trace.block_tokens;
      for (int b = 0; b < blocks; ++b) {
        prompt.blocks.push_back(
            own_block_key(static_cast<uint64_t>(s) + 1, static_cast<uint64_t>(b)));
      }
      TraceTurn turn;
      turn.prompt = std::move(prompt);
      turn.output_tokens = options.output_tokens;
      turn.think = t == 0 ? 0 : options.think;
      session.turns.push_back(std::move(turn));
    }
    trace.sessions.push_back(std::move(session));
  }
  return trace;
}

}  // namespace vamp
