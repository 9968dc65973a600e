// Text to token ids and back, by a Hugging Face tokenizer.json: byte-level BPE and the
// SentencePiece-like BPE of Llama 2 and Mixtral. Ids are identical to those of Hugging Face's
// `tokenizers`; what this file does not know of a tokenizer.json it refuses by name.
#pragma once

#include <filesystem>
#include <memory>
#include <mutex>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer_config.h"
#include "text/tokenizer_limits.h"

namespace vamp {

// Owns vocabulary, merges and everything compiled from tokenizer.json; immutable after loading. Any
// number of threads may encode and decode at once: each call borrows a scratch (buffers and a cache
// of words) from a pool that grows to the number of calls at the same time.
class Tokenizer {
 public:
  // From tokenizer.json's text; `name` stands in errors. Throws Error.
  Tokenizer(std::string_view json, const std::string& name, TokenizerConfig config = {},
            const TokenizerLimits& limits = {});
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;

  // From a model folder: tokenizer.json and, where present, tokenizer_config.json and
  // chat_template.jinja. Throws Error.
  static Tokenizer load(const std::filesystem::path& folder, const TokenizerLimits& limits = {});

  // Broken UTF-8 counts as U+FFFD. With `add_special_tokens` the template of post_processor
  // applies. Special tokens written out in the text are always recognised. Throws Error when an
  // expression of the file takes too many steps.
  std::vector<TokenId> encode(std::string_view text, bool add_special_tokens = true) const;

  // The same, but nothing for a text of so many bytes that it is sure to have more than
  // `max_tokens`, and that without the work. A text that has not so many more is encoded all the
  // same.
  std::optional<std::vector<TokenId>> encode_unless_longer(std::string_view text,
                                                           bool add_special_tokens,
                                                           size_t max_tokens) const;

  // Ids that no token has are left out. The result is valid UTF-8.
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens = true) const;

  // One more than the highest id (logits beyond it belong to no token).
  size_t id_count() const { return texts_.size(); }
  std::optional<TokenId> id_of(std::string_view token) const;
  // The token as the file writes it; empty for an id that no token has.
  const std::string& token(TokenId id) const;
  bool is_special(TokenId id) const { return has_token(id) && special_[static_cast<size_t>(id)]; }
  // The bytes that the token stands for in running text: what logprobs and grammars show.
  const std::string& bytes(TokenId id) const;

  const TokenizerConfig& config() const { return config_; }
  std::optional<TokenId> bos_id() const { return bos_id_; }
  std::optional<TokenId> eos_id() const { return eos_id_; }

  // Decoding a stream, token by token: see Detokenizer.
  const Decoder& decoder() const { return parts_->decoder; }
  const Decoder::Prepared* prepared(TokenId id) const;

 private:
  struct Scratch;
  struct Parts {
    Normalizer normalizer;
    PreTokenizer pre_tokenizer;
    BpeModel model;
    AddedTokens added;
    Decoder decoder;
  };

  static std::unique_ptr<Parts> make_parts(const nlohmann::json& json,
                                           const TokenizerLimits& limits);
  void index_tokens();
  void read_post_processor(const nlohmann::json& json);
  bool has_token(TokenId id) const {
    return id >= 0 && static_cast<size_t>(id) < present_.size() &&
           present_[static_cast<size_t>(id)];
  }
  std::unique_ptr<Scratch> borrow_scratch() const;
  void give_back(std::unique_ptr<Scratch> scratch) const;
  bool encode_text(std::string_view text, bool at_start, Scratch& scratch, size_t max_tokens,
                   std::vector<TokenId>& out) const;
  bool encode_words(std::string_view text, bool at_start, Scratch& scratch, size_t max_tokens,
                    std::vector<TokenId>& out) const;

  TokenizerConfig config_;
  std::unique_ptr<Parts> parts_;
  std::vector<std::string> texts_;           // by id, as the file writes them
  std::vector<Decoder::Prepared> prepared_;  // by id
  std::vector<bool> present_, special_;      // by id
  std::vector<TokenId> prefix_, suffix_;     // what add_special_tokens adds
  std::optional<TokenId> bos_id_, eos_id_;
  size_t most_bytes_per_token_ = 0;  // of normalized text; 0: not known
  struct Pool;
  std::unique_ptr<Pool> pool_;
};

}  // namespace vamp
