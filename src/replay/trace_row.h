// One JSON object of a trace, read field by field with messages that name file, line and field.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "replay/trace.h"

namespace vamp {

inline constexpr int64_t kMaxTraceTokens = 16 << 20;  // of one prompt or reply: beyond any model

// A view: the JSON must outlive it.
class TraceRow {
 public:
  TraceRow(const nlohmann::json& object, std::string where);

  bool has(const char* field) const;
  // Each throws Error when the field is missing, of another type, or out of [low, high].
  int64_t integer(const char* field, int64_t low, int64_t high) const;
  double number(const char* field, double low, double high) const;
  const std::string& string(const char* field) const;
  const nlohmann::json& array(const char* field) const;
  // Block ids; ids of one session only when `scope` is not 0.
  std::vector<uint64_t> block_ids(const char* field, uint64_t scope) const;
  // The row's time of `field` in `unit` microseconds, from 0 to some 30 years.
  Micros time(const char* field, Micros unit) const;

  [[noreturn]] void fail(const std::string& fault) const;
  const std::string& where() const { return where_; }

 private:
  const nlohmann::json& at(const char* field) const;
  const nlohmann::json& object_;
  std::string where_;
};

// Parses one JSON text; throws Error with `where`. `first_line` is the text's line in its file.
nlohmann::json parse_json(std::string_view text, const std::string& document, int first_line);

// Calls row(json, "trace FILE line N") for each non-empty line.
template <typename Row>
void for_each_line(const TraceDocument& document, Row row) {
  const std::string_view text = document.text;
  int line = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    ++line;
    const std::string_view content = text.substr(begin, end - begin);
    begin = end + 1;
    if (content.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const nlohmann::json json = parse_json(content, document.name, line);
    row(json, "trace " + document.name + " line " + std::to_string(line));
  }
}

// A user's message that opens a conversation or follows an answer.
TextPrompt user_prompt(ChatMarkup& markup, bool first, std::string content);

// Readers, one for each format.
Trace read_mooncake(const std::vector<TraceDocument>& documents, const TraceReadOptions& options);
Trace read_weka(const std::vector<TraceDocument>& documents, const TraceReadOptions& options);
Trace read_vllm_multi_turn(const std::vector<TraceDocument>& documents,
                           const TraceReadOptions& options);
Trace read_lmcache(const std::vector<TraceDocument>& documents, const TraceReadOptions& options);

// Covers the tokens behind the last whole block with one more key: the one that the session's next
// turn has there if it extends this prompt, else a key of its own. Keys and token counts must
// agree.
void complete_block_keys(Trace& trace);
// A well-mixed key of the two numbers, with the top bit set: never equal to an id of a trace.
uint64_t own_block_key(uint64_t a, uint64_t b);

}  // namespace vamp
