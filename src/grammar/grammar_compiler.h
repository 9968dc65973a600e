// From a constraint on the output to a TokenGrammar, by XGrammar.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "core/token_grammar.h"
#include "grammar/output_constraint.h"
#include "text/tokenizer.h"

namespace vamp {

struct GrammarLimits {
  size_t source_bytes = 256 * kKiB;  // of a schema, pattern or grammar
  int max_repetition = 10000;        // bounds like {0,n}, minLength, maxItems
  int schema_depth = 64;             // nesting of a JSON schema
  size_t schema_nodes = 10000;       // its objects, arrays and values together
  size_t cache_bytes = 256 * kMiB;   // of compiled grammars kept for the next request
};

// Knows the tokenizer's vocabulary. Any thread; compiling takes milliseconds to seconds, so not on
// the engine's. Compiled grammars are kept and shared.
class GrammarCompiler {
 public:
  // `vocab_size` is the model's: rows of logits, at least the tokenizer's id_count(); tokens beyond
  // the tokenizer's are never allowed. `stop_tokens` end the output where a request names none.
  // The tokenizer may go afterwards.
  GrammarCompiler(const Tokenizer& tokenizer, int vocab_size, std::span<const TokenId> stop_tokens,
                  const GrammarLimits& limits = {});
  ~GrammarCompiler();

  // Throws Error for what is malformed, too large, or could not be enforced to the letter, naming
  // it. (oneOf is taken as anyOf where its schemas are not plainly disjoint, as vLLM does.)
  std::shared_ptr<const TokenGrammar> compile(const OutputConstraint& constraint);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vamp
