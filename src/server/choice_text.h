// One choice's tokens become what a client sees: text, reasoning, tool calls, logprobs, and why it
// ended.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/request.h"
#include "server/engine_bridge.h"
#include "text/detokenizer.h"
#include "text/output_parser.h"

namespace vamp {

struct ChoiceOptions {
  DetokenizerOptions detokenizer;
  OutputParserOptions parser;
  std::vector<TokenId> stop_token_ids;  // the model's end tokens among them, unless ignored
  int min_tokens = 0;
  bool logprobs = false;
  bool token_ids = false;  // deltas carry them
};

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
  std::vector<std::pair<TokenId, float>> top;
};

// What became certain since the last one.
struct ChoiceDelta {
  MessageDelta message;
  std::vector<TokenLogprob> logprobs;
  std::vector<TokenLogprob>
      prompt_logprobs;  // of the prompt's tokens but the first, when asked for
  std::vector<TokenId> token_ids;
  int tokens = 0;
  bool finished = false;  // the last one
};

// Why a choice ended, known once a delta is `finished`.
struct ChoiceEnd {
  std::string reason;  // "stop", "length", "tool_calls", "abort"
  std::variant<std::monostate, TokenId, std::string> stop_reason;  // vLLM's: what stopped it
};

// The tokenizer must outlive it. One thread.
class ChoiceText {
 public:
  ChoiceText(const Tokenizer& tokenizer, const ChoiceOptions& options);

  // Takes a token or the end in. Nothing is taken after the end.
  void push(const EngineEvent& event, ChoiceDelta& out);

  bool finished() const { return finished_; }
  // A stop string ended it: the engine's request must be cancelled.
  bool stopped_by_text() const { return detokenizer_.stopped(); }
  const ChoiceEnd& end() const { return end_; }
  int tokens() const { return tokens_; }

 private:
  void finish(ChoiceDelta& out);
  bool is_stop_token(TokenId token) const;

  ChoiceOptions options_;
  Detokenizer detokenizer_;
  std::unique_ptr<OutputParser> parser_;
  ChoiceEnd end_;
  std::optional<TokenId> stop_token_;
  int tokens_ = 0;
  bool finished_ = false, called_tools_ = false;
};

}  // namespace vamp
