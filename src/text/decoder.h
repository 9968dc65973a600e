// The "decoder" of tokenizer.json: tokens back to text. One implementation for whole texts and for
// streams: text comes out as soon as no later token can change it.
//
// Supported: none (tokens joined by spaces), ByteLevel, Metaspace, and the SentencePiece family as
// a Sequence of Replace, ByteFallback, Fuse and Strip in this order, each of them optional.
// Anything else is refused by name.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/tokenizer_limits.h"

namespace vamp {

// Where a stream of tokens stands. Begins empty.
struct DecoderState {
  std::string pending;    // bytes that are no whole character yet
  size_t stripped = 0;    // characters that a Strip behind Fuse has taken from the front
  bool first = true;      // no token yet
  bool stripping = true;  // still at the front
};

// Immutable after construction: any thread may use it.
class Decoder {
 public:
  // `json` is the "decoder" object or null. Throws Error.
  Decoder(const nlohmann::json& json, const TokenizerLimits& limits);

  // A token as the vocabulary writes it, made ready for push(): done once for each token.
  struct Prepared {
    std::string text;
    bool is_byte = false;  // a byte-fallback token; `text` is that byte
  };
  Prepared prepare(std::string_view token) const;

  // Appends what the token adds to the text. With `eager`, a character put together from byte
  // tokens comes as soon as it is whole; without, when the run of byte tokens ends, as Hugging Face
  // replaces every byte of a run that is broken anywhere. The two differ only in broken runs.
  void push(const Prepared& token, bool eager, DecoderState& state, std::string& out) const;
  // Appends what is still held back: an unfinished character becomes U+FFFD.
  void finish(DecoderState& state, std::string& out) const;

 private:
  enum class Kind { kJoinBySpaces, kByteLevel, kMetaspace, kPieces };

  void add_step(const nlohmann::json& json, const TokenizerLimits& limits);
  void set_metaspace(const nlohmann::json& json);
  void end_byte_run(DecoderState& state, std::string& out) const;
  void emit(std::string_view text, DecoderState& state, std::string& out) const;

  Kind kind_ = Kind::kJoinBySpaces;
  std::vector<std::pair<std::string, std::string>> replacements_;
  bool byte_fallback_ = false, fused_ = false;
  // Strip of each token, or of the whole text once fused.
  std::string strip_content_;
  size_t strip_front_ = 0, strip_back_ = 0;
  std::string mark_;              // Metaspace
  bool drop_first_mark_ = false;  // Metaspace: marks of the first token go
};

}  // namespace vamp
