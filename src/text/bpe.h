// The byte-pair model of tokenizer.json: a vocabulary and ranked merges.
#pragma once

#include <array>
#include <boost/unordered/unordered_flat_map.hpp>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "text/tokenizer_limits.h"

namespace vamp {

// What one thread needs to encode words: buffers, and a cache of short words (fixed size, a newer
// word takes an older one's place). Belongs to one BpeModel; one thread.
class BpeScratch {
 public:
  BpeScratch();
  ~BpeScratch();
  BpeScratch(const BpeScratch&) = delete;
  BpeScratch& operator=(const BpeScratch&) = delete;

 private:
  friend class BpeModel;
  struct CachedWord;
  struct Candidate;
  struct Symbol;
  std::unique_ptr<CachedWord[]> cache_;
  std::vector<TokenId> symbols_;
  std::vector<uint32_t> ranks_;
  std::vector<Symbol> links_;
  std::vector<Candidate> heap_;
};

// Immutable after construction: any thread may use it, each with a scratch of its own.
class BpeModel {
 public:
  // `json` is the "model" object. With `bytes` words are plain bytes and the vocabulary is written
  // in GPT-2's alphabet; without, words are UTF-8 text and so is the vocabulary. Throws Error; a
  // model of another type, or with dropout, prefixes or suffixes, is refused by name.
  BpeModel(const nlohmann::json& json, bool bytes, const TokenizerLimits& limits);

  // Appends the tokens of one word. Time is n log n in the word's length.
  void encode(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const;

  // Tokens as the file writes them.
  std::optional<TokenId> id_of(std::string_view token) const;
  const std::vector<std::string>& tokens() const { return tokens_; }  // by id; a hole is empty
  size_t size() const { return ids_.size(); }                         // entries of the vocabulary
  // Bytes of a word that one token stands for at most; 0: not known, as bytes may get lost.
  size_t most_bytes_per_token() const { return most_bytes_per_token_; }

 private:
  struct Merge {
    uint32_t rank;
    TokenId result;
  };

  void read_vocabulary(const nlohmann::json& json, const TokenizerLimits& limits);
  void read_merges(const nlohmann::json& json);
  void index_words();
  const Merge* merge_of(TokenId left, TokenId right) const;
  void encode_uncached(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const;
  void first_symbols(std::string_view word, std::vector<TokenId>& symbols) const;
  bool append_byte_tokens(std::string_view character, std::vector<TokenId>& symbols) const;
  void merge_short(BpeScratch& scratch) const;
  void merge_long(BpeScratch& scratch) const;

  size_t most_bytes_per_token_ = 0;
  bool bytes_;
  bool ignore_merges_ = false, fuse_unknown_ = false, byte_fallback_ = false;
  std::optional<TokenId> unknown_;
  std::vector<std::string> tokens_;
  boost::unordered_flat_map<std::string, TokenId> ids_;
  boost::unordered_flat_map<std::string, TokenId> words_;  // whole words, as encode() is given them
  boost::unordered_flat_map<uint64_t, Merge> merges_;
  std::array<TokenId, 256> byte_symbols_;  // with bytes: each byte's token, -1: none
  std::array<TokenId, 256> fallback_;      // "<0x00>" and so on, -1: none
};

}  // namespace vamp
