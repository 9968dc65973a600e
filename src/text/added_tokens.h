// Tokens beside the model's vocabulary: found in text before anything else happens to it.
#pragma once

#include <boost/unordered/unordered_flat_map.hpp>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "text/bpe.h"
#include "text/normalizer.h"
#include "text/tokenizer_limits.h"

namespace vamp {

struct AddedToken {
  TokenId id = 0;
  std::string content;
  std::string decoded;       // what it stands for in decoded text: its normalized form
  bool single_word = false;  // only where no word character touches it
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and behind it
  bool normalized = false;   // looked for in normalized text, in its normalized form
  bool special = false;      // left out of decoded text on request
};

// A part of a text: an added token (id ≥ 0), or text between them (id -1).
struct AddedTokenPart {
  size_t begin = 0, end = 0;
  TokenId id = -1;
};

// Immutable after construction: any thread may use it.
class AddedTokens {
 public:
  // `json` is "added_tokens" or null. Ids must be those that Hugging Face would give: the model's
  // own where the model knows the token, else the next free ones. Throws Error.
  AddedTokens(const nlohmann::json& json, const BpeModel& model, const Normalizer& normalizer,
              const TokenizerLimits& limits);

  // Appends the parts of `text`, in order. The leftmost token wins, then the longest.
  void find(std::string_view text, bool in_normalized, std::vector<AddedTokenPart>& out) const;

  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  // A byte trie over token contents.
  class Trie {
   public:
    void add(std::string_view content, size_t index);
    // The longest content that text[at...] begins with; its end, or 0.
    size_t longest(std::string_view text, size_t at, size_t& index) const;
    bool may_begin(char byte) const { return first_[static_cast<unsigned char>(byte)]; }

   private:
    boost::unordered_flat_map<uint64_t, uint32_t> children_;  // node · 256 + byte → node
    std::vector<int64_t> index_ = {-1};                       // by node; -1: no token ends here
    bool first_[256] = {};
  };

  std::vector<AddedToken> tokens_;
  Trie plain_, normalized_;
};

}  // namespace vamp
