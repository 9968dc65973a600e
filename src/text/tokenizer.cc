#include "text/tokenizer.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "text/json_fields.h"
#include "text/utf8.h"

namespace vamp {

using json_fields::Json;

// What one call of encode() works with. Reused, so that the cache of words stays warm.
struct Tokenizer::Scratch {
  RegexScratch regex;
  BpeScratch bpe;
  TextPieces pieces;
  std::vector<AddedTokenPart> parts, normalized_parts;
  std::string valid_text, normalized;
};

struct Tokenizer::Pool {
  std::mutex mutex;
  std::vector<std::unique_ptr<Scratch>> free;
};

std::unique_ptr<Tokenizer::Parts> Tokenizer::make_parts(const Json& json,
                                                        const TokenizerLimits& limits) {
  const auto part = [&](const char* key) -> const Json& {
    return json_fields::optional(json, key, "the file");
  };
  Normalizer normalizer(part("normalizer"), limits);
  PreTokenizer pre_tokenizer(part("pre_tokenizer"), limits);
  BpeModel model(json_fields::required(json, "model", "the file"), pre_tokenizer.yields_bytes(),
                 limits);
  AddedTokens added(part("added_tokens"), model, normalizer, limits);
  return std::make_unique<Parts>(Parts{std::move(normalizer), std::move(pre_tokenizer),
                                       std::move(model), std::move(added),
                                       Decoder(part("decoder"), limits)});
}

Tokenizer::Tokenizer(std::string_view json, const std::string& name, TokenizerConfig config,
                     const TokenizerLimits& limits)
    : config_(std::move(config)), pool_(std::make_unique<Pool>()) {
  try {
    if (json.size() > limits.file_bytes) {
      throw Error("{}, the limit is {}", format_bytes(json.size()),
                  format_bytes(limits.file_bytes));
    }
    const Json parsed = Json::parse(json);
    parts_ = make_parts(parsed, limits);
    if (parts_->pre_tokenizer.keeps_text())
      most_bytes_per_token_ = parts_->model.most_bytes_per_token();
    index_tokens();
    read_post_processor(json_fields::optional(parsed, "post_processor", "the file"));
    if (!config_.bos_token.empty()) bos_id_ = id_of(config_.bos_token);
    if (!config_.eos_token.empty()) eos_id_ = id_of(config_.eos_token);
  } catch (const Error& error) {
    throw Error("{}: {}", name, error.what());
  } catch (const Json::exception& error) {
    throw Error("{}: not valid JSON: {}", name, error.what());
  }
}

Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;

Tokenizer Tokenizer::load(const std::filesystem::path& folder, const TokenizerLimits& limits) {
  const auto path = folder / "tokenizer.json";
  return Tokenizer(read_text_file(path, limits.file_bytes), path.string(),
                   load_tokenizer_config(folder), limits);
}

void Tokenizer::index_tokens() {
  texts_ = parts_->model.tokens();
  for (const AddedToken& token : parts_->added.tokens()) {
    const auto id = static_cast<size_t>(token.id);
    if (id >= texts_.size()) texts_.resize(id + 1);
    texts_[id] = token.content;
  }
  present_.resize(texts_.size());
  special_.resize(texts_.size());
  prepared_.resize(texts_.size());
  for (size_t id = 0; id < texts_.size(); ++id) {
    present_[id] = !texts_[id].empty() || parts_->model.id_of("") == static_cast<TokenId>(id);
    if (present_[id]) prepared_[id] = parts_->decoder.prepare(texts_[id]);
  }
  for (const AddedToken& token : parts_->added.tokens()) {
    special_[static_cast<size_t>(token.id)] = token.special;
    prepared_[static_cast<size_t>(token.id)] = parts_->decoder.prepare(token.decoded);
  }
}

// The ids that the template for a single sequence puts before and behind it.
void Tokenizer::read_post_processor(const Json& json) {
  if (json.is_null()) return;
  const std::string& type = json_fields::string(json, "type", "post_processor");
  const std::string where = "post_processor " + type;
  if (type == "ByteLevel") return;  // moves offsets only
  if (type == "Sequence") {
    for (const Json& part : json_fields::array(json, "processors", where)) {
      if (json_fields::string(part, "type", "post_processor") == "Sequence") {
        throw Error("{} in a Sequence is not supported", where);
      }
      read_post_processor(part);
    }
    return;
  }
  if (type != "TemplateProcessing") {
    throw Error(
        "post_processor \"{}\" is not supported (supported: TemplateProcessing, ByteLevel, "
        "Sequence)",
        type);
  }
  bool seen_text = false;
  std::vector<TokenId> prefix, suffix;
  const Json& special_tokens = json_fields::required(json, "special_tokens", where);
  for (const Json& piece : json_fields::array(json, "single", where)) {
    if (!json_fields::optional(piece, "Sequence", where).is_null()) {
      if (std::exchange(seen_text, true)) throw Error("{} has the text twice", where);
      continue;
    }
    const std::string& name =
        json_fields::string(json_fields::required(piece, "SpecialToken", where), "id", where);
    const Json& token = json_fields::required(special_tokens, name.c_str(), where);
    for (const Json& id : json_fields::array(token, "ids", where)) {
      const auto value = json_fields::natural(id, static_cast<int64_t>(id_count()), where + " id");
      (seen_text ? suffix : prefix).push_back(static_cast<TokenId>(value));
    }
  }
  if (!seen_text) throw Error("{} has no place for the text", where);
  prefix_.insert(prefix_.begin(), prefix.begin(), prefix.end());
  suffix_.insert(suffix_.end(), suffix.begin(), suffix.end());
}

std::unique_ptr<Tokenizer::Scratch> Tokenizer::borrow_scratch() const {
  {
    const std::lock_guard lock(pool_->mutex);
    if (!pool_->free.empty()) {
      auto scratch = std::move(pool_->free.back());
      pool_->free.pop_back();
      return scratch;
    }
  }
  return std::make_unique<Scratch>();
}

void Tokenizer::give_back(std::unique_ptr<Scratch> scratch) const {
  scratch->pieces.written.clear();
  const std::lock_guard lock(pool_->mutex);
  pool_->free.push_back(std::move(scratch));
}

std::vector<TokenId> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  return *encode_unless_longer(text, add_special_tokens, std::numeric_limits<size_t>::max());
}

std::optional<std::vector<TokenId>> Tokenizer::encode_unless_longer(std::string_view text,
                                                                    bool add_special_tokens,
                                                                    size_t max_tokens) const {
  std::unique_ptr<Scratch> scratch = borrow_scratch();
  if (!utf8::is_valid(text)) {
    scratch->valid_text.clear();
    utf8::append_replaced(text, scratch->valid_text);
    text = scratch->valid_text;
  }
  std::vector<TokenId> ids;
  ids.reserve(std::min(text.size() / 3, max_tokens) + prefix_.size() + suffix_.size());
  if (add_special_tokens) ids = prefix_;
  scratch->parts.clear();
  parts_->added.find(text, false, scratch->parts);
  bool whole = true;
  for (const AddedTokenPart& part : scratch->parts) {
    if (part.id >= 0) {
      ids.push_back(part.id);
    } else {
      whole = encode_text(text.substr(part.begin, part.end - part.begin), part.begin == 0, *scratch,
                          max_tokens, ids);
      if (!whole) break;
    }
  }
  if (add_special_tokens) ids.insert(ids.end(), suffix_.begin(), suffix_.end());
  give_back(std::move(scratch));
  if (!whole) return std::nullopt;
  return ids;
}

// Text without plain added tokens: normalizes it, then looks for the normalized ones. False when
// there are sure to be more than `max_tokens` in all.
bool Tokenizer::encode_text(std::string_view text, bool at_start, Scratch& scratch,
                            size_t max_tokens, std::vector<TokenId>& out) const {
  const std::string_view normalized =
      parts_->normalizer.normalize(text, scratch.regex, scratch.normalized);
  scratch.normalized_parts.clear();
  parts_->added.find(normalized, true, scratch.normalized_parts);
  for (const AddedTokenPart& part : scratch.normalized_parts) {
    if (part.id >= 0) {
      out.push_back(part.id);
    } else if (!encode_words(normalized.substr(part.begin, part.end - part.begin),
                             at_start && part.begin == 0, scratch, max_tokens, out)) {
      return false;
    }
  }
  return true;
}

bool Tokenizer::encode_words(std::string_view text, bool at_start, Scratch& scratch,
                             size_t max_tokens, std::vector<TokenId>& out) const {
  if (most_bytes_per_token_ > 0) {
    const size_t room = max_tokens - std::min(max_tokens, out.size());
    if (text.size() / most_bytes_per_token_ > room) return false;
  }
  TextPieces& pieces = scratch.pieces;
  pieces.written.clear();
  pieces.pieces.assign(1, {text, at_start});
  parts_->pre_tokenizer.split(pieces, scratch.regex);
  for (const TextPiece& piece : pieces.pieces) parts_->model.encode(piece.text, scratch.bpe, out);
  return true;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  std::string text;
  DecoderState state;
  for (const TokenId id : ids) {
    if (!has_token(id) || (skip_special_tokens && is_special(id))) continue;
    parts_->decoder.push(prepared_[static_cast<size_t>(id)], false, state, text);
  }
  parts_->decoder.finish(state, text);
  return text;
}

std::optional<TokenId> Tokenizer::id_of(std::string_view token) const {
  for (const AddedToken& added : parts_->added.tokens()) {
    if (added.content == token) return added.id;
  }
  return parts_->model.id_of(token);
}

const std::string& Tokenizer::token(TokenId id) const {
  static const std::string none;
  return has_token(id) ? texts_[static_cast<size_t>(id)] : none;
}

const std::string& Tokenizer::bytes(TokenId id) const {
  static const std::string none;
  return has_token(id) ? prepared_[static_cast<size_t>(id)].text : none;
}

const Decoder::Prepared* Tokenizer::prepared(TokenId id) const {
  return has_token(id) ? &prepared_[static_cast<size_t>(id)] : nullptr;
}

}  // namespace vamp
