#include "replay/prompt_builder.h"

#include <algorithm>

#include "base/error.h"

namespace vamp {
namespace {
constexpr int kUnrecordedOutput = 128;  // tokens, where a text trace ends with an open question
}

PromptBuilder::PromptBuilder(const Trace& trace, const PromptOptions& options, Encode encode)
    : trace_(trace), options_(options), encode_(std::move(encode)) {
  VAMP_CHECK(options.vocab_size > 0);
  const int low = std::min(1000, options.vocab_size / 2);
  low_ = static_cast<uint64_t>(low);
  range_ = static_cast<uint64_t>(std::min(150000, options.vocab_size) - low);
  const bool cuts =
      options.first_prompt_tokens > 0 || options.turn_tokens > 0 || options.own_replies;
  if (trace.block_tokens > 0 && cuts) {
    throw Error(
        "--first-prompt-tokens, --turn-tokens and --own-replies are for traces of text; this one "
        "holds block "
        "ids, use --token-scale");
  }
  if (trace.block_tokens == 0 && !encode_) {
    throw Error("this trace holds text: the model folder needs a tokenizer.json");
  }
}

std::vector<TokenId> PromptBuilder::build(size_t session, size_t turn,
                                          const std::vector<TokenId>& previous_prompt,
                                          const std::vector<TokenId>& previous_answer) const {
  const auto& prompt = trace_.sessions.at(session).turns.at(turn).prompt;
  if (const auto* blocks = std::get_if<BlockPrompt>(&prompt)) return from_blocks(*blocks);
  return from_text(std::get<TextPrompt>(prompt), previous_prompt, previous_answer);
}

int PromptBuilder::output_tokens(size_t session, size_t turn) const {
  const TraceTurn& recorded = trace_.sessions.at(session).turns.at(turn);
  int tokens = options_.output_tokens > 0 ? options_.output_tokens : recorded.output_tokens;
  if (tokens == 0 && !recorded.output_text.empty())
    tokens = static_cast<int>(encode_(recorded.output_text).size());
  if (tokens == 0) tokens = kUnrecordedOutput;
  return options_.max_output_tokens > 0 ? std::min(tokens, options_.max_output_tokens) : tokens;
}

// splitmix64 of key and position.
TokenId PromptBuilder::block_token(uint64_t key, int i) const {
  uint64_t x = key * 0x9E3779B97F4A7C15ull + options_.seed * 0xD1342543DE82EF95ull +
               static_cast<uint64_t>(i + 1) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  x ^= x >> 31;
  return static_cast<TokenId>(low_ + x % range_);
}

std::vector<TokenId> PromptBuilder::from_blocks(const BlockPrompt& prompt) const {
  std::vector<TokenId> tokens(static_cast<size_t>(prompt.tokens));
  const size_t size = static_cast<size_t>(trace_.block_tokens);
  for (size_t t = 0; t < tokens.size(); ++t) {
    tokens[t] = block_token(prompt.blocks[t / size], static_cast<int>(t % size));
  }
  return tokens;
}

// Piece by piece, so that a prompt begins with exactly the tokens of the one before.
std::vector<TokenId> PromptBuilder::from_text(const TextPrompt& prompt,
                                              const std::vector<TokenId>& previous_prompt,
                                              const std::vector<TokenId>& previous_answer) const {
  std::vector<TokenId> tokens;
  const auto append = [&tokens](const std::vector<TokenId>& piece) {
    tokens.insert(tokens.end(), piece.begin(), piece.end());
  };
  if (prompt.continues) {
    append(previous_prompt);
    append(options_.own_replies ? previous_answer : encode_(prompt.recorded_reply));
  }
  const std::vector<TokenId> lead = encode_(prompt.lead), trail = encode_(prompt.trail);
  std::vector<TokenId> content = encode_(prompt.content);
  const int limit = prompt.continues ? options_.turn_tokens : options_.first_prompt_tokens;
  if (limit > 0) {
    const size_t markup = lead.size() + trail.size(), most = static_cast<size_t>(limit);
    content.resize(std::min(content.size(), most > markup ? most - markup : 0));
  }
  append(lead);
  append(content);
  append(trail);
  return tokens;
}

}  // namespace vamp
