#include "text/added_tokens.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "base/error.h"
#include "text/json_fields.h"
#include "text/utf8.h"

namespace vamp {
namespace {

using json_fields::Json;

// \w of Rust's regex crate.
bool is_word(char32_t c) {
  const auto character = static_cast<UChar32>(c);
  return u_hasBinaryProperty(character, UCHAR_ALPHABETIC) ||
         u_hasBinaryProperty(character, UCHAR_JOIN_CONTROL) ||
         (U_GET_GC_MASK(character) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

// Where the character that ends at `end` begins.
size_t previous_begin(std::string_view text, size_t end) {
  size_t at = end - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

bool word_before(std::string_view text, size_t at) {
  return at > 0 && is_word(utf8::decode(text, previous_begin(text, at)).code_point);
}
bool word_at(std::string_view text, size_t at) {
  return at < text.size() && is_word(utf8::decode(text, at).code_point);
}

size_t space_begin(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t at = previous_begin(text, end);
    if (!u_isUWhiteSpace(static_cast<UChar32>(utf8::decode(text, at).code_point))) break;
    end = at;
  }
  return end;
}

size_t space_end(std::string_view text, size_t at) {
  while (at < text.size()) {
    const utf8::Decoded c = utf8::decode(text, at);
    if (!u_isUWhiteSpace(static_cast<UChar32>(c.code_point))) break;
    at += static_cast<size_t>(c.length);
  }
  return at;
}

AddedToken read_token(const Json& json, const TokenizerLimits& limits) {
  const std::string where = "entry of added_tokens";
  AddedToken token;
  token.content = json_fields::string(json, "content", where);
  if (token.content.size() > limits.added_token_bytes) {
    throw Error("an added token of {} bytes: the limit is {}", token.content.size(),
                limits.added_token_bytes);
  }
  token.id = static_cast<TokenId>(
      json_fields::natural(json_fields::required(json, "id", where), limits.token_ids,
                           fmt::format("id of added token \"{}\"", token.content)));
  token.single_word = json_fields::boolean(json, "single_word", false, where);
  token.lstrip = json_fields::boolean(json, "lstrip", false, where);
  token.rstrip = json_fields::boolean(json, "rstrip", false, where);
  token.special = json_fields::boolean(json, "special", false, where);
  token.normalized = json_fields::boolean(json, "normalized", !token.special, where);
  return token;
}

}  // namespace

void AddedTokens::Trie::add(std::string_view content, size_t index) {
  first_[static_cast<unsigned char>(content[0])] = true;
  uint32_t node = 0;
  for (const char byte : content) {
    const uint64_t key = uint64_t{node} << 8 | static_cast<unsigned char>(byte);
    const auto [child, inserted] = children_.try_emplace(key, static_cast<uint32_t>(index_.size()));
    node = child->second;
    if (inserted) index_.push_back(-1);
  }
  if (index_[node] < 0) index_[node] = static_cast<int64_t>(index);
}

size_t AddedTokens::Trie::longest(std::string_view text, size_t at, size_t& index) const {
  size_t end = 0;
  uint32_t node = 0;
  while (at < text.size()) {
    const auto child = children_.find(uint64_t{node} << 8 | static_cast<unsigned char>(text[at]));
    if (child == children_.end()) break;
    node = child->second;
    ++at;
    if (index_[node] >= 0) {
      end = at;
      index = static_cast<size_t>(index_[node]);
    }
  }
  return end;
}

AddedTokens::AddedTokens(const Json& json, const BpeModel& model, const Normalizer& normalizer,
                         const TokenizerLimits& limits) {
  if (json.is_null()) return;
  if (!json.is_array()) throw Error("\"added_tokens\" is not an array");
  if (json.size() > limits.added_tokens) {
    throw Error("{} added tokens: the limit is {}", json.size(), limits.added_tokens);
  }
  boost::unordered_flat_map<std::string, TokenId> known;
  RegexScratch scratch;
  std::string storage;
  TokenId next_id = static_cast<TokenId>(model.size());
  for (const Json& entry : json) {
    AddedToken token = read_token(entry, limits);
    if (token.content.empty() || known.contains(token.content)) {
      throw Error("added token {} is empty or given twice: \"{}\"", token.id, token.content);
    }
    const TokenId expected = model.id_of(token.content).value_or(next_id);
    next_id = std::max(next_id, expected + 1);
    if (token.id != expected) {
      throw Error("added token \"{}\" has id {}, but by the model's vocabulary it is {}",
                  token.content, token.id, expected);
    }
    known.emplace(token.content, token.id);
    if (token.normalized) {
      const std::string_view pattern = normalizer.normalize(token.content, scratch, storage);
      if (pattern.empty()) throw Error("added token \"{}\" normalizes to nothing", token.content);
      normalized_.add(pattern, tokens_.size());
      token.decoded = pattern;
    } else {
      token.decoded = token.content;
      plain_.add(token.content, tokens_.size());
    }
    tokens_.push_back(std::move(token));
  }
}

void AddedTokens::find(std::string_view text, bool in_normalized,
                       std::vector<AddedTokenPart>& out) const {
  const Trie& trie = in_normalized ? normalized_ : plain_;
  size_t done = 0;  // everything before is in `out`
  for (size_t at = 0; at < text.size();) {
    size_t index = 0, end = 0;
    if (!trie.may_begin(text[at]) || (end = trie.longest(text, at, index)) == 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[index];
    size_t begin = at;
    at = end;
    if (token.single_word && (word_before(text, begin) || word_at(text, end))) continue;
    if (token.lstrip) begin = std::max(space_begin(text, begin), done);
    if (token.rstrip) end = space_end(text, end);
    if (done < begin) out.push_back({done, begin, -1});
    out.push_back({begin, end, token.id});
    done = end;
  }
  if (done < text.size()) out.push_back({done, text.size(), -1});
}

}  // namespace vamp
