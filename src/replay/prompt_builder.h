// From a trace's turn to token ids.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "replay/trace.h"

namespace vamp {

struct PromptOptions {
  uint64_t seed = 1;   // of block tokens
  int vocab_size = 0;  // tokens of blocks lie in [min(1000, V/2), min(150000, V))
  bool own_replies =
      false;  // text: the model's own output enters the next prompt, not the recorded one
  int first_prompt_tokens = 0;  // text: cut a session's first prompt to so many; 0: as recorded
  int turn_tokens = 0;    // text: cut what a later turn adds, the reply not counted; 0: as recorded
  int output_tokens = 0;  // of every turn; 0: as recorded
  int max_output_tokens = 0;  // at most so many; 0: no limit
};

// Immutable. The trace must outlive it.
class PromptBuilder {
 public:
  using Encode = std::function<std::vector<TokenId>(std::string_view)>;

  // `encode` is needed for text only; throws Error when it is missing then.
  PromptBuilder(const Trace& trace, const PromptOptions& options, Encode encode);

  // Prompt of a session's turn. For text that goes on from the turn before, that turn's prompt and
  // the model's answer to it are needed.
  std::vector<TokenId> build(size_t session, size_t turn,
                             const std::vector<TokenId>& previous_prompt,
                             const std::vector<TokenId>& previous_answer) const;
  // How many tokens the answer shall have, at least 1.
  int output_tokens(size_t session, size_t turn) const;

  // The i-th token (from 0) of a block depends on (seed, key) alone.
  TokenId block_token(uint64_t key, int i) const;

 private:
  std::vector<TokenId> from_blocks(const BlockPrompt& prompt) const;
  std::vector<TokenId> from_text(const TextPrompt& prompt,
                                 const std::vector<TokenId>& previous_prompt,
                                 const std::vector<TokenId>& previous_answer) const;

  const Trace& trace_;
  const PromptOptions options_;
  const Encode encode_;
  uint64_t low_, range_;
};

}  // namespace vamp
