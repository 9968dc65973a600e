// What an output must look like, as an executor sees it: which tokens may come next. The grammars
// themselves are in src/grammar.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/units.h"

namespace vamp {

// Follows one request's output. One thread.
class TokenMatcher {
 public:
  virtual ~TokenMatcher() = default;
  // Sets bit (t % 32) of allowed[t / 32] for every token t that may come next and clears the
  // others. `allowed` has a bit for each token of the model's vocabulary, rounded up to words. At
  // the end of the output, only stop tokens may come; after one, everything.
  virtual void fill(std::span<uint32_t> allowed) = 0;
  // The next token. False when it was not allowed; the matcher then stays where it was.
  virtual bool accept(TokenId token) = 0;
};

// Immutable: shared by requests and threads.
class TokenGrammar {
 public:
  virtual ~TokenGrammar() = default;
  // `stop_tokens`: what ends the output once the grammar is satisfied; empty: the model's own.
  virtual std::unique_ptr<TokenMatcher> start(std::span<const TokenId> stop_tokens) const = 0;
};

}  // namespace vamp
