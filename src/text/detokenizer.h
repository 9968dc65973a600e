// Tokens to text while they are generated.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace vamp {

struct DetokenizerOptions {
  bool skip_special_tokens = true;
  std::vector<std::string> stop = {};   // the text ends before the first of these
  bool include_stop_in_output = false;  // or behind it
};

// One stream of generated tokens. Text comes out as whole characters, and never a character that
// could still turn out to be part of a stop string; put together it is what Tokenizer::decode gives
// (up to the stop string), but for broken runs of byte tokens (see Decoder::push). The tokenizer
// must outlive it. One thread.
class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, DetokenizerOptions options);

  // The text that this token makes certain; empty once stopped.
  std::string push(TokenId token);
  // What was still held back: to be called once, after the last token.
  std::string finish();

  bool stopped() const { return stop_.has_value(); }
  // The stop string that was found, if one was.
  const std::optional<std::string>& stop_reason() const { return stop_; }

 private:
  std::string release(bool last);
  bool find_stop(std::string& out);

  const Tokenizer& tokenizer_;
  DetokenizerOptions options_;
  DecoderState state_;
  std::string held_;  // decoded, not given out
  std::optional<std::string> stop_;
};

}  // namespace vamp
