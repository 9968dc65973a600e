// Reading the "model" object of tokenizer.json.
#include <algorithm>

#include "base/error.h"
#include "text/bpe.h"
#include "text/byte_alphabet.h"
#include "text/json_fields.h"
#include "text/utf8.h"

namespace vamp {
namespace {

using json_fields::Json;

// The type is missing in old files: then it is what has merges.
std::string type_of(const Json& json) {
  if (!json_fields::optional(json, "type", "model").is_null()) {
    return json_fields::string(json, "type", "model");
  }
  return json_fields::optional(json, "merges", "model").is_null() ? "of unknown type" : "BPE";
}

void refuse_what_is_unsupported(const Json& json) {
  if (const std::string type = type_of(json); type != "BPE") {
    throw Error("model \"{}\" is not supported (supported: BPE)", type);
  }
  const Json& dropout = json_fields::optional(json, "dropout", "model");
  if (!dropout.is_null() && dropout != 0.0) throw Error("model BPE with dropout is not supported");
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& value = json_fields::optional(json, key, "model");
    if (!value.is_null() && value != "") throw Error("model BPE with {} is not supported", key);
  }
}

// "a b" or ["a", "b"].
std::pair<std::string, std::string> read_merge(const Json& entry, size_t number) {
  if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
    return {entry[0].get<std::string>(), entry[1].get<std::string>()};
  }
  if (entry.is_string()) {
    const std::string& text = entry.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string::npos && text.find(' ', space + 1) == std::string::npos) {
      return {text.substr(0, space), text.substr(space + 1)};
    }
  }
  throw Error("merge {} of the model is not a pair of tokens", number);
}

}  // namespace

BpeModel::BpeModel(const Json& json, bool bytes, const TokenizerLimits& limits) : bytes_(bytes) {
  refuse_what_is_unsupported(json);
  ignore_merges_ = json_fields::boolean(json, "ignore_merges", false, "model");
  fuse_unknown_ = json_fields::boolean(json, "fuse_unk", false, "model");
  byte_fallback_ = json_fields::boolean(json, "byte_fallback", false, "model");
  read_vocabulary(json, limits);
  read_merges(json);
  if (!json_fields::optional(json, "unk_token", "model").is_null()) {
    const std::string& unknown = json_fields::string(json, "unk_token", "model");
    unknown_ = id_of(unknown);
    if (!unknown_) throw Error("unk_token \"{}\" is not in the model's vocabulary", unknown);
  }
  index_words();
}

void BpeModel::read_vocabulary(const Json& json, const TokenizerLimits& limits) {
  const Json& vocabulary = json_fields::required(json, "vocab", "model");
  if (!vocabulary.is_object()) throw Error("\"vocab\" of model is not an object");
  ids_.reserve(vocabulary.size());
  std::vector<bool> taken;
  for (const auto& [token, value] : vocabulary.items()) {
    const auto id = static_cast<size_t>(
        json_fields::natural(value, limits.token_ids, fmt::format("id of token \"{}\"", token)));
    if (id >= tokens_.size()) {
      tokens_.resize(id + 1);
      taken.resize(id + 1);
    }
    if (taken[id]) throw Error("tokens \"{}\" and \"{}\" share id {}", tokens_[id], token, id);
    taken[id] = true;
    tokens_[id] = token;
    ids_.emplace(token, static_cast<TokenId>(id));
  }
}

void BpeModel::read_merges(const Json& json) {
  const Json& merges = json_fields::array(json, "merges", "model");
  merges_.reserve(merges.size());
  uint32_t rank = 0;
  for (const Json& entry : merges) {
    if (entry.is_string() && entry.get_ref<const std::string&>().starts_with("#version")) continue;
    const auto [left, right] = read_merge(entry, rank);
    const auto left_id = id_of(left), right_id = id_of(right), result = id_of(left + right);
    if (!left_id || !right_id || !result) {
      throw Error("merge {} of the model, \"{}\" + \"{}\": the vocabulary lacks \"{}\"", rank, left,
                  right,
                  !left_id    ? left
                  : !right_id ? right
                              : left + right);
    }
    const auto pair = static_cast<uint64_t>(static_cast<uint32_t>(*left_id)) << 32 |
                      static_cast<uint32_t>(*right_id);
    merges_.insert_or_assign(pair, Merge{rank, *result});  // of two alike the later counts
    ++rank;
  }
}

void BpeModel::index_words() {
  byte_symbols_.fill(-1);
  fallback_.fill(-1);
  for (int byte = 0; byte < 256; ++byte) {
    std::string letter;
    utf8::append(byte_alphabet()[static_cast<size_t>(byte)], letter);
    if (const auto id = id_of(letter)) byte_symbols_[static_cast<size_t>(byte)] = *id;
    if (const auto id = id_of(fmt::format("<0x{:02X}>", byte))) {
      fallback_[static_cast<size_t>(byte)] = *id;
    }
  }
  if (!bytes_) {
    words_ = ids_;
  } else if (ignore_merges_) {
    words_.reserve(ids_.size());
    for (const auto& [token, id] : ids_) {
      if (auto bytes = bytes_of_alphabet(token)) words_.emplace(std::move(*bytes), id);
    }
  }
  const auto complete = [](const std::array<TokenId, 256>& table) {
    return std::find(table.begin(), table.end(), -1) == table.end();
  };
  if (!(bytes_ ? complete(byte_symbols_) : byte_fallback_ && complete(fallback_))) return;
  for (const std::string& token : tokens_) {
    // In GPT-2's alphabet a character is a byte.
    const auto counts = [&](unsigned char c) { return !bytes_ || (c & 0xC0) != 0x80; };
    const auto size = std::count_if(token.begin(), token.end(), counts);
    most_bytes_per_token_ = std::max(most_bytes_per_token_, static_cast<size_t>(size));
  }
}

}  // namespace vamp
