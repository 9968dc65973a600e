// Recorded multi-turn workloads in one form, whatever file they came from.
//
// A session's turns run strictly one after the other. A prompt is given in one of two ways:
//   - by block ids (hash_ids): equal ids mean equal tokens, so reuse is exactly the trace's. The
//   reply
//     enters the next prompt as the recorded ids say, never as the model's own output;
//   - by text: the piece that the client adds behind the previous prompt and its reply. The reply
//   in
//     the next prompt is the recorded one, or the model's own (ReplayOptions::own_replies).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/units.h"
#include "replay/chat_markup.h"
#include "replay/trace_source.h"

namespace vamp {

enum class TraceFormat {
  kMooncake,       // AIPerf mooncake_trace JSON lines; without session_id plain Mooncake
  kWeka,           // one JSON object a session: {"block_size", "requests": [...]}
  kVllmMultiTurn,  // [{"id", "messages": [{"role", "content"}, ...]}, ...]
  kLmcache,        // JSON lines with cumulative text: timestamp (us), input, output, session_id
};
const char* trace_format_name(TraceFormat format);
// "mooncake", "weka", "vllm-multi-turn", "lmcache"; throws Error on anything else.
TraceFormat parse_trace_format(std::string_view name);

struct BlockPrompt {
  // Keys of consecutive runs of Trace::block_tokens tokens; they cover `tokens`, the last one
  // perhaps in part.
  std::vector<uint64_t> blocks;
  int tokens = 0;
};

// prompt = (continues ? previous prompt + reply : nothing) + lead + content + trail.
struct TextPrompt {
  bool continues = false;
  std::string recorded_reply;  // what stands in the recorded prompt for the previous turn's reply
  std::string lead, trail;     // markup around the content (chat roles); never cut
  std::string content;
};

struct TraceTurn {
  std::variant<BlockPrompt, TextPrompt> prompt;
  int output_tokens = 0;             // 0: not recorded as a number
  std::string output_text;           // recorded reply, where the trace has text
  Micros think = 0;                  // between the previous turn's end and this turn's start
  std::optional<Micros> not_before;  // recorded start, since the start of the trace
};

struct TraceSession {
  std::string name;
  std::vector<TraceTurn> turns;  // at least one
};

struct Trace {
  TraceFormat format = TraceFormat::kMooncake;
  int block_tokens = 0;            // of a block id; 0: prompts are text
  bool arrivals_recorded = false;  // every session's first turn has `not_before`
  std::vector<TraceSession> sessions;

  size_t num_turns() const;
};

struct TraceReadOptions {
  std::optional<TraceFormat> format;  // default: told from the content
  int block_tokens = 0;               // tokens of a block id; 0: inferred from the lengths
  size_t max_bytes = kMaxTraceBytes;  // of text, unpacked
  bool chat = false;                  // LMCache: wrap each piece of text as a user's chat message
  // What stands around messages; default: ChatML.
  std::shared_ptr<ChatMarkup> markup = std::make_shared<ChatMarkup>();
};

// Throws Error naming the file, the line and the fault. Never allocates more than a small multiple
// of the documents' size.
Trace parse_trace(const std::vector<TraceDocument>& documents, const TraceReadOptions& options);

inline Trace read_trace(const std::string& path, const TraceReadOptions& options = {}) {
  return parse_trace(read_trace_documents(path, options.max_bytes), options);
}

struct TraceSelection {
  int max_sessions = 0;   // the first so many; 0: all
  int max_turns = 0;      // of each session; 0: all
  int drop_shortest = 0;  // leave out so many sessions with the fewest turns (later ones on a tie)
};
// Drops first, then limits. Throws Error if nothing is left.
void select_sessions(Trace& trace, const TraceSelection& selection);

// Turns every 64-token block (say) into round(64 * scale) tokens, and lengths with it; outputs are
// scaled too, to at least one token. Throws Error for text traces, and where a block would vanish.
void scale_tokens(Trace& trace, double scale);

// The paper's in-house workload: sessions that grow by equal steps. No two share a prefix.
struct SweepOptions {
  int sessions = 16;
  int turns = 12;
  size_t kv_bytes_per_session = 0;  // of the last prompt with its reply, on one GPU
  size_t kv_bytes_per_token = 0;    // of the model, on one GPU
  double first_share = 0.4;         // first prompt, as a share of the end
  int output_tokens = 128;
  Micros think = 0;
};
// Throws Error when the sizes leave no growth.
Trace make_sweep(const SweepOptions& options);

}  // namespace vamp
