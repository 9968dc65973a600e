// Traces that hold real text: vLLM's multi-turn conversations and LMCache's agent trace.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "replay/trace_row.h"

namespace vamp {

// [{"id", "messages": [{"role", "content"}, ...]}, ...]: a turn for each assistant message, whose
// prompt is all before it; trailing messages without an answer make one more turn.
Trace read_vllm_multi_turn(const std::vector<TraceDocument>& documents) {
  Trace trace;
  for (const TraceDocument& document : documents) {
    const nlohmann::json json = parse_json(document.text, document.name, 1);
    if (!json.is_array())
      throw Error("trace {} line 1: must be a JSON array of conversations", document.name);
    for (size_t c = 0; c < json.size(); ++c) {
      const TraceRow row(json[c], fmt::format("trace {} conversation {}", document.name, c + 1));
      TraceSession session{row.has("id") && json[c]["id"].is_string()
                               ? row.string("id")
                               : fmt::format("conversation-{}", c + 1),
                           {}};
      TextPrompt prompt;
      bool open = false;  // the prompt has messages
      for (const nlohmann::json& value : row.array("messages")) {
        const TraceRow message(value, row.where() + " message");
        const std::string& role = message.string("role");
        const std::string& content = message.string("content");
        if (role == "assistant") {
          if (!open) message.fail("an assistant's message must answer another role's");
          TraceTurn turn;
          prompt.trail = "<|im_end|>\n<|im_start|>assistant\n";
          turn.prompt = std::move(prompt);
          turn.output_text = content;
          session.turns.push_back(std::move(turn));
          prompt = TextPrompt{true, content, "<|im_end|>\n", "", ""};
          open = false;
          continue;
        }
        const std::string head = "<|im_start|>" + role + "\n";
        if (open) {
          prompt.content += "<|im_end|>\n" + head + content;
        } else {
          prompt.lead += head;
          prompt.content = content;
        }
        open = true;
      }
      if (open) {
        prompt.trail = "<|im_end|>\n<|im_start|>assistant\n";
        TraceTurn turn;
        turn.prompt = std::move(prompt);
        session.turns.push_back(std::move(turn));
      }
      if (session.turns.empty()) row.fail("holds no message to answer");
      trace.sessions.push_back(std::move(session));
    }
  }
  return trace;
}

namespace {

struct LmcacheRow {
  Micros time = 0;
  std::string input, output;
};

using RowsByTime = std::multimap<Micros, LmcacheRow>;

// The cumulative inputs of a session, in time order, as what each adds.
TraceSession lmcache_session(const std::string& id, RowsByTime by_time, Micros start, bool chat) {
  std::vector<LmcacheRow> rows;
  for (auto& [time, row] : by_time) rows.push_back(std::move(row));
  TraceSession session{id, {}};
  for (size_t r = 0; r < rows.size(); ++r) {
    TextPrompt prompt;
    std::string_view added = rows[r].input;
    if (r > 0 && added.substr(0, rows[r - 1].input.size()) == rows[r - 1].input) {
      prompt.continues = true;
      added.remove_prefix(rows[r - 1].input.size());
      const std::string& reply =
          rows[r - 1].output;  // most of these traces leave it out of the input
      if (!reply.empty() && added.substr(0, reply.size()) == reply) {
        prompt.recorded_reply = reply;
        added.remove_prefix(reply.size());
      }
    }
    prompt.content = added;
    if (chat) {
      ChatPiece piece = chat_user_piece(!prompt.continues, std::move(prompt.content));
      prompt.lead = std::move(piece.lead);
      prompt.content = std::move(piece.content);
      prompt.trail = std::move(piece.trail);
    }
    TraceTurn turn;
    turn.prompt = std::move(prompt);
    turn.think = r == 0 ? 0 : rows[r].time - rows[r - 1].time;
    turn.not_before = rows[r].time - start;
    session.turns.push_back(std::move(turn));
  }
  for (size_t r = 0; r < rows.size(); ++r) session.turns[r].output_text = std::move(rows[r].output);
  return session;
}

}  // namespace

// {"timestamp" (us), "input" (the whole prompt so far), "output", "session_id"}, rows in any order.
// The gap between two rows stands for the think time: when a reply ended is not recorded.
Trace read_lmcache(const std::vector<TraceDocument>& documents, const TraceReadOptions& options) {
  std::vector<std::string> order;
  std::map<std::string, RowsByTime> rows;
  Micros start = std::numeric_limits<Micros>::infinity();
  for (const TraceDocument& document : documents) {
    for_each_line(document, [&](const nlohmann::json& json, std::string where) {
      const TraceRow row(json, std::move(where));
      LmcacheRow read{row.number("timestamp", 0, 1e17), row.string("input"), row.string("output")};
      start = std::min(start, read.time);
      const std::string& id = row.string("session_id");
      if (!rows.contains(id)) order.push_back(id);
      rows[id].emplace(read.time, std::move(read));
    });
  }
  Trace trace;
  for (const std::string& id : order) {
    trace.sessions.push_back(lmcache_session(id, std::move(rows[id]), start, options.chat));
  }
  return trace;
}

}  // namespace vamp
