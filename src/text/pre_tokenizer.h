// The "pre_tokenizer" of tokenizer.json: cuts normalized text into the words that BPE works on.
// Split, ByteLevel, Digits, Metaspace, Punctuation, Whitespace, WhitespaceSplit, alone or in a
// Sequence. Anything else is refused by name.
#pragma once

#include <deque>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "text/regex.h"
#include "text/tokenizer_limits.h"

namespace vamp {

// A stretch of text on its way to becoming words.
struct TextPiece {
  std::string_view text;
  bool at_start = false;  // it begins where the whole input begins (Metaspace asks)
};

// The pieces of one text, and what was written anew on the way. One thread.
struct TextPieces {
  std::vector<TextPiece> pieces;
  std::vector<TextPiece> next;      // what the step at work has made
  std::deque<std::string> written;  // addresses stay
};

// Immutable after construction: any thread may use it, each with pieces and a scratch of its own.
class PreTokenizer {
 public:
  // `json` is the "pre_tokenizer" object or null (the text stays whole). Throws Error.
  PreTokenizer(const nlohmann::json& json, const TokenizerLimits& limits);
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  // Replaces pieces.pieces by the words, in order, none of them empty. Text is valid UTF-8.
  void split(TextPieces& pieces, RegexScratch& scratch) const;

  // True when no step leaves text out: the words have at least the text's bytes.
  bool keeps_text() const;

  // True when the last step is ByteLevel. Its rewriting of bytes as letters is then left out: the
  // words are plain bytes, and so must be the model's vocabulary.
  bool yields_bytes() const { return yields_bytes_; }

  class Step;

 private:
  std::vector<std::unique_ptr<Step>> steps_;
  bool yields_bytes_ = false;
};

}  // namespace vamp
