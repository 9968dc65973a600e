// A grammar for the answer alone, of a model that reasons first.
#pragma once

#include <memory>
#include <optional>

#include "core/token_grammar.h"

namespace vamp {

// Tokens that enclose the reasoning.
struct ReasoningTokens {
  std::optional<TokenId> begin;  // none: only a prompt can open it
  TokenId end = 0;
  bool open = false;  // the output begins within the reasoning
};

// Anything goes up to the end of the reasoning, `answer` holds behind it. An output that is not
// `open` may begin with the reasoning or with the answer.
std::shared_ptr<const TokenGrammar> after_reasoning(std::shared_ptr<const TokenGrammar> answer,
                                                    const ReasoningTokens& tokens);

}  // namespace vamp
