// Traces that hold real text: vLLM's multi-turn conversations and LMCache's agent trace.
#include <algorithm>
#include <map>

#include "base/error.h"
#include "replay/trace_row.h"

namespace vamp {

namespace {

TraceTurn text_turn(TextPrompt prompt, std::string output) {
  TraceTurn turn;
  turn.prompt.emplace<TextPrompt>(std::move(prompt));
  turn.output_text = std::move(output);
  return turn;
}

// A turn for each assistant message, whose prompt is all before it; trailing messages without an
// answer make one more.
std::vector<TraceTurn> conversation_turns(const TraceRow& row, ChatMarkup& markup) {
  std::vector<TraceTurn> turns;
  TextPrompt prompt;
  bool open = false;     // the prompt has messages
  std::string previous;  // role of the message before; empty: none
  const nlohmann::json& messages = row.array("messages");
  for (size_t m = 0; m < messages.size(); ++m) {
    const TraceRow message(messages[m], fmt::format("{} message {}", row.where(), m + 1));
    const std::string& role = message.string("role");
    const std::string& content = message.string("content");
    if (role.empty()) message.fail("a role must not be empty");
    if (role == "assistant") {
      if (!open) message.fail("an assistant's message must answer another role's");
      prompt.trail = markup.answer(previous);
      turns.push_back(text_turn(std::move(prompt), content));
      prompt = TextPrompt{true, content, "", "", ""};
    } else {
      const std::string& head =
          previous.empty() ? markup.first(role) : markup.between(previous, role);
      (open ? prompt.content : prompt.lead) += head;
      prompt.content += content;
    }
    open = role != "assistant";
    previous = role;
  }
  if (open) {
    prompt.trail = markup.answer(previous);
    turns.push_back(text_turn(std::move(prompt), ""));
  }
  return turns;
}

}  // namespace

// [{"id", "messages": [{"role", "content"}, ...]}, ...]
Trace read_vllm_multi_turn(const std::vector<TraceDocument>& documents,
                           const TraceReadOptions& options) {
  Trace trace;
  for (const TraceDocument& document : documents) {
    const nlohmann::json json = parse_json(document.text, document.name, 1);
    if (!json.is_array())
      throw Error("trace {} line 1: must be a JSON array of conversations", document.name);
    for (size_t c = 0; c < json.size(); ++c) {
      const TraceRow row(json[c], fmt::format("trace {} conversation {}", document.name, c + 1));
      TraceSession session;
      session.name = row.has("id") && json[c]["id"].is_string()
                         ? row.string("id")
                         : fmt::format("conversation-{}", c + 1);
      session.turns = conversation_turns(row, *options.markup);
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
TraceSession lmcache_session(const std::string& id, RowsByTime by_time, Micros start,
                             const TraceReadOptions& options) {
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
    if (options.chat) {
      std::string reply = std::move(prompt.recorded_reply);
      prompt = user_prompt(*options.markup, !prompt.continues, std::move(prompt.content));
      prompt.recorded_reply = std::move(reply);
    }
    TraceTurn turn = text_turn(std::move(prompt), "");
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
    trace.sessions.push_back(lmcache_session(id, std::move(rows[id]), start, options));
  }
  return trace;
}

}  // namespace vamp
