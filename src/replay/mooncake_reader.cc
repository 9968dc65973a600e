// AIPerf `mooncake_trace` rows: {"session_id", "timestamp" | "delay" (ms), "output_length"} and one
// of
//   "input_length" + "hash_ids"   block ids
//   "messages"                    the whole conversation so far, OpenAI messages
//   "text_input"                  what the user adds in this turn
// Rows of a session are its turns in order. A row without session_id is a session of its own: plain
// Mooncake, whose blocks have 512 tokens and whose last, partly filled block has an id too.
#include <algorithm>
#include <limits>
#include <map>

#include "base/error.h"
#include "replay/trace_row.h"

namespace vamp {
namespace {

struct Reading {
  ChatMarkup& markup;
  Trace trace;
  std::map<std::string, size_t> index;                  // session_id → session
  std::map<std::string, nlohmann::json> last_messages;  // session_id → of its last turn
  std::map<std::string, Micros> last_time;
  std::vector<std::string> where;                    // of every block row, with its lengths below
  std::vector<std::pair<int64_t, int64_t>> lengths;  // (tokens, ids)
};

std::string content_text(const TraceRow& row, const nlohmann::json& message) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) return {};
  if (content->is_string()) return content->get<std::string>();
  if (!content->is_array())
    row.fail("a message's content must be a string or a list of text parts");
  std::string text;
  for (const nlohmann::json& part : *content) {
    if (part.is_object() && part.contains("text") && part["text"].is_string())
      text += part["text"].get_ref<const std::string&>();
  }
  return text;
}

std::string role_of(const TraceRow& row, const nlohmann::json& message) {
  if (!message.is_object() || !message.contains("role") || !message["role"].is_string()) {
    row.fail("each message must be an object with a role");
  }
  if (message["role"].get_ref<const std::string&>().empty()) row.fail("a role must not be empty");
  return message["role"].get<std::string>();
}

// Messages [from, end), up to and with the header of the answer.
TextPrompt render_messages(const TraceRow& row, const nlohmann::json& messages, size_t from,
                           ChatMarkup& markup) {
  TextPrompt prompt;
  prompt.continues = from > 0;
  if (prompt.continues && messages[from - 1].value("role", "") == "assistant") {
    prompt.recorded_reply = content_text(row, messages[from - 1]);
  }
  std::string previous = prompt.continues ? role_of(row, messages[from - 1]) : "";
  for (size_t m = from; m < messages.size(); ++m) {
    const std::string role = role_of(row, messages[m]);
    const std::string& head =
        previous.empty() ? markup.first(role) : markup.between(previous, role);
    (m == from ? prompt.lead : prompt.content) += head;
    prompt.content += content_text(row, messages[m]);
    previous = role;
  }
  prompt.trail = markup.answer(previous);
  return prompt;
}

TextPrompt messages_prompt(const TraceRow& row, const std::string& id, Reading& reading) {
  const nlohmann::json& messages = row.array("messages");
  if (messages.empty()) row.fail("field \"messages\" must not be empty");
  const nlohmann::json& last = reading.last_messages[id];
  // The turn extends the last one when its messages begin with that one's and go on with the reply.
  size_t from = 0;
  if (last.is_array() && messages.size() > last.size() + 1 &&
      std::equal(last.begin(), last.end(), messages.begin()) && messages[last.size()].is_object() &&
      messages[last.size()].value("role", nlohmann::json()) == "assistant") {
    from = last.size() + 1;
  }
  TextPrompt prompt = render_messages(row, messages, from, reading.markup);
  reading.last_messages[id] = messages;
  return prompt;
}

void read_prompt(const TraceRow& row, const std::string& id, bool first, Reading& reading,
                 TraceTurn& turn) {
  if (row.has("hash_ids") || row.has("input_length")) {
    BlockPrompt prompt;
    prompt.tokens = static_cast<int>(row.integer("input_length", 1, kMaxTraceTokens));
    prompt.blocks = row.block_ids("hash_ids", 0);
    reading.where.push_back(row.where());
    reading.lengths.emplace_back(prompt.tokens, static_cast<int64_t>(prompt.blocks.size()));
    turn.prompt = std::move(prompt);
  } else if (row.has("messages")) {
    turn.prompt = messages_prompt(row, id, reading);
  } else if (row.has("text_input")) {
    turn.prompt = user_prompt(reading.markup, first, row.string("text_input"));
  } else {
    row.fail("needs one of input_length with hash_ids, messages, or text_input");
  }
}

void read_row(const TraceRow& row, Reading& reading) {
  std::string id = row.has("session_id")
                       ? row.string("session_id")
                       : "request-" + std::to_string(reading.trace.sessions.size());
  const auto [found, first] = reading.index.try_emplace(id, reading.trace.sessions.size());
  if (first) reading.trace.sessions.push_back({id, {}});
  TraceTurn turn;
  read_prompt(row, id, first, reading, turn);
  if (row.has("output_length")) {
    turn.output_tokens =
        std::max<int>(1, static_cast<int>(row.integer("output_length", 0, kMaxTraceTokens)));
  }
  if (row.has("timestamp")) {
    turn.not_before = row.time("timestamp", 1e3);
    const auto before = reading.last_time.find(id);
    if (before != reading.last_time.end())
      turn.think = std::max(0.0, *turn.not_before - before->second);
    reading.last_time[id] = *turn.not_before;
  }
  if (row.has("delay")) turn.think = row.time("delay", 1e3);
  reading.trace.sessions[found->second].turns.push_back(std::move(turn));
}

// The size of a block is not in the file. Ids cover the prompt's whole blocks, with or without one
// more for a last part: one common size fits that for every row.
int infer_block_tokens(const Reading& reading) {
  for (const int size : {512, 256, 128, 64, 32, 16}) {
    const auto fits = [size](const std::pair<int64_t, int64_t>& row) {
      return row.second == row.first / size || row.second == (row.first + size - 1) / size;
    };
    if (std::all_of(reading.lengths.begin(), reading.lengths.end(), fits)) return size;
  }
  throw Error(
      "{}: its {} hash_ids fit no common block size (512 ... 16) for {} tokens together with the "
      "other "
      "rows; give --trace-block-size",
      reading.where.front(), reading.lengths.front().second, reading.lengths.front().first);
}

void check_block_tokens(const Reading& reading, int size) {
  for (size_t i = 0; i < reading.lengths.size(); ++i) {
    const auto [tokens, ids] = reading.lengths[i];
    if (ids != tokens / size && ids != (tokens + size - 1) / size) {
      throw Error("{}: {} tokens make {} blocks of {}, but hash_ids holds {}", reading.where[i],
                  tokens, (tokens + size - 1) / size, size, ids);
    }
  }
}

// Some traces count time from 1970.
void start_at_zero(Trace& trace) {
  Micros start = std::numeric_limits<Micros>::infinity();
  const auto for_each_time = [&](auto use) {
    for (TraceSession& session : trace.sessions) {
      for (TraceTurn& turn : session.turns) {
        if (turn.not_before) use(*turn.not_before);
      }
    }
  };
  for_each_time([&](Micros time) { start = std::min(start, time); });
  for_each_time([&](Micros& time) { time -= start; });
}

}  // namespace

Trace read_mooncake(const std::vector<TraceDocument>& documents, const TraceReadOptions& options) {
  Reading reading{*options.markup, {}, {}, {}, {}, {}, {}};
  for (const TraceDocument& document : documents) {
    for_each_line(document, [&](const nlohmann::json& json, std::string where) {
      const TraceRow row(json, std::move(where));
      const size_t before = reading.lengths.size();
      const size_t turns = reading.index.size();
      read_row(row, reading);
      const bool blocks = reading.lengths.size() > before;
      const bool first_row = turns == 0;
      if (!first_row && blocks != (before > 0))
        row.fail("block ids and text cannot be mixed in one trace");
    });
  }
  Trace trace = std::move(reading.trace);
  start_at_zero(trace);
  if (!reading.lengths.empty()) {
    trace.block_tokens =
        options.block_tokens > 0 ? options.block_tokens : infer_block_tokens(reading);
    check_block_tokens(reading, trace.block_tokens);
    complete_block_keys(trace);
  }
  return trace;
}

}  // namespace vamp
