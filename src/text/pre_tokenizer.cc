#include "text/pre_tokenizer.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "text/byte_alphabet.h"
#include "text/json_fields.h"
#include "text/split_behavior.h"
#include "text/utf8.h"

namespace vamp {

using json_fields::Json;

class PreTokenizer::Step {
 public:
  virtual ~Step() = default;
  // From state.pieces to state.next, which is empty.
  virtual void apply(TextPieces& state, RegexScratch& scratch) const = 0;
  virtual bool keeps_text() const { return true; }
};

namespace {

constexpr int kMaxDepth = 8;
// What ByteLevel splits by when use_regex is set: GPT-2's expression.
constexpr const char* kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

void split_by_regex(const Regex& regex, const TextPiece& piece, SplitBehavior behavior, bool invert,
                    RegexScratch& scratch, std::vector<SplitPart>& parts,
                    std::vector<TextPiece>& out) {
  SplitParts collected(parts);
  Regex::Match match;
  for (size_t from = 0; from <= piece.text.size();) {
    if (!regex.find(piece.text, from, scratch, match)) break;
    from = match.end;
    const bool empty = match.begin == match.end;
    // An empty match cuts, but never right behind another match.
    if (!empty || match.begin == 0 || match.begin > collected.end()) {
      collected.delimiter(match.begin, match.end, invert);
    }
    if (empty) {
      if (from == piece.text.size()) break;
      from += utf8::decode(piece.text, from).length;
    }
  }
  collected.finish(piece.text.size(), invert);
  append_split(piece, parts, behavior, out);
}

class RegexSplit final : public PreTokenizer::Step {
 public:
  RegexSplit(Regex regex, SplitBehavior behavior, bool invert)
      : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}
  void apply(TextPieces& state, RegexScratch& scratch) const override {
    std::vector<SplitPart> parts;
    for (const TextPiece& piece : state.pieces) {
      split_by_regex(regex_, piece, behavior_, invert_, scratch, parts, state.next);
    }
  }
  bool keeps_text() const override { return behavior_ != SplitBehavior::kRemoved; }

 private:
  Regex regex_;
  SplitBehavior behavior_;
  bool invert_;
};

class LiteralSplit final : public PreTokenizer::Step {
 public:
  LiteralSplit(std::string literal, SplitBehavior behavior, bool invert)
      : literal_(std::move(literal)), behavior_(behavior), invert_(invert) {}
  void apply(TextPieces& state, RegexScratch&) const override {
    std::vector<SplitPart> parts;
    for (const TextPiece& piece : state.pieces) {
      SplitParts collected(parts);
      for (size_t at = 0; (at = piece.text.find(literal_, at)) != std::string_view::npos;) {
        collected.delimiter(at, at + literal_.size(), invert_);
        at += literal_.size();
      }
      collected.finish(piece.text.size(), invert_);
      append_split(piece, parts, behavior_, state.next);
    }
  }
  bool keeps_text() const override { return behavior_ != SplitBehavior::kRemoved; }

 private:
  std::string literal_;
  SplitBehavior behavior_;
  bool invert_;
};

// Splits at characters of a kind, each a delimiter of its own.
class CharacterSplit final : public PreTokenizer::Step {
 public:
  using Predicate = bool (*)(char32_t);
  CharacterSplit(Predicate is_delimiter, SplitBehavior behavior)
      : is_delimiter_(is_delimiter), behavior_(behavior) {}
  void apply(TextPieces& state, RegexScratch&) const override {
    std::vector<SplitPart> parts;
    for (const TextPiece& piece : state.pieces) {
      SplitParts collected(parts);
      for (size_t at = 0; at < piece.text.size();) {
        const utf8::Decoded c = utf8::decode(piece.text, at);
        if (is_delimiter_(c.code_point)) collected.delimiter(at, at + c.length);
        at += c.length;
      }
      collected.finish(piece.text.size());
      append_split(piece, parts, behavior_, state.next);
    }
  }
  bool keeps_text() const override { return behavior_ != SplitBehavior::kRemoved; }

 private:
  Predicate is_delimiter_;
  SplitBehavior behavior_;
};

class ByteLevel final : public PreTokenizer::Step {
 public:
  ByteLevel(bool add_prefix_space, bool use_regex, bool rewrite)
      : add_prefix_space_(add_prefix_space), rewrite_(rewrite) {
    if (use_regex) regex_.emplace(kGpt2Regex);
  }
  void apply(TextPieces& state, RegexScratch& scratch) const override {
    std::vector<SplitPart> parts;
    for (TextPiece& piece : state.pieces) {
      if (add_prefix_space_ && !piece.text.starts_with(' ')) {
        piece.text = state.written.emplace_back(" ").append(piece.text);
      }
      if (regex_) {
        split_by_regex(*regex_, piece, SplitBehavior::kIsolated, false, scratch, parts, state.next);
      } else {
        state.next.push_back(piece);
      }
    }
    if (!rewrite_) return;
    for (TextPiece& piece : state.next) {
      piece.text = state.written.emplace_back(alphabet_of_bytes(piece.text));
    }
  }

 private:
  bool add_prefix_space_;
  bool rewrite_;
  std::optional<Regex> regex_;
};

// Writes spaces as a visible mark (U+2581) and cuts before each.
class Metaspace final : public PreTokenizer::Step {
 public:
  enum class Prepend { kAlways, kFirst, kNever };
  Metaspace(std::string mark, Prepend prepend, bool split)
      : mark_(std::move(mark)), prepend_(prepend), split_(split) {}
  void apply(TextPieces& state, RegexScratch&) const override {
    std::vector<SplitPart> parts;
    for (const TextPiece& piece : state.pieces) {
      const TextPiece marked{write_marks(piece, state.written.emplace_back()), piece.at_start};
      if (!split_) {
        state.next.push_back(marked);
        continue;
      }
      SplitParts collected(parts);
      for (size_t at = 0; (at = marked.text.find(mark_, at)) != std::string_view::npos;) {
        collected.delimiter(at, at + mark_.size());
        at += mark_.size();
      }
      collected.finish(marked.text.size());
      append_split(marked, parts, SplitBehavior::kMergedWithNext, state.next);
    }
  }

 private:
  std::string_view write_marks(const TextPiece& piece, std::string& out) const {
    const bool wanted =
        prepend_ == Prepend::kAlways || (prepend_ == Prepend::kFirst && piece.at_start);
    if (wanted && !piece.text.starts_with(' ') && !piece.text.starts_with(mark_)) out = mark_;
    for (const char c : piece.text) {
      if (c == ' ') {
        out.append(mark_);
      } else {
        out.push_back(c);
      }
    }
    return out;
  }

  std::string mark_;
  Prepend prepend_;
  bool split_;
};

bool is_numeric(char32_t c) {
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_N_MASK) != 0;
}
bool is_space(char32_t c) {
  return u_isUWhiteSpace(static_cast<UChar32>(c));
}
// Rust's char::is_ascii_punctuation also takes the ASCII symbols.
bool is_punctuation(char32_t c) {
  if (c < 0x80) return c > ' ' && c < 0x7F && !u_isalnum(static_cast<UChar32>(c));
  return (U_GET_GC_MASK(static_cast<UChar32>(c)) & U_GC_P_MASK) != 0;
}

std::unique_ptr<PreTokenizer::Step> make_split(const Json& json) {
  const std::string where = "pre_tokenizer Split";
  const SplitBehavior behavior =
      parse_split_behavior(json_fields::string(json, "behavior", where), where);
  const bool invert = json_fields::boolean(json, "invert", false, where);
  const Json& pattern = json_fields::required(json, "pattern", where);
  if (!json_fields::optional(pattern, "Regex", where).is_null()) {
    return std::make_unique<RegexSplit>(Regex(json_fields::string(pattern, "Regex", where)),
                                        behavior, invert);
  }
  const std::string& literal = json_fields::string(pattern, "String", where);
  if (literal.empty()) throw Error("{} has an empty pattern", where);
  return std::make_unique<LiteralSplit>(literal, behavior, invert);
}

std::unique_ptr<PreTokenizer::Step> make_metaspace(const Json& json) {
  const std::string where = "pre_tokenizer Metaspace";
  const std::string& mark = json_fields::string(json, "replacement", where);
  if (mark.empty() || utf8::decode(mark, 0).length != static_cast<int>(mark.size())) {
    throw Error("\"replacement\" of {} is not one character", where);
  }
  const bool add_prefix_space = json_fields::boolean(json, "add_prefix_space", true, where);
  std::string scheme = add_prefix_space ? "always" : "never";
  if (!json_fields::optional(json, "prepend_scheme", where).is_null()) {
    scheme = json_fields::string(json, "prepend_scheme", where);
  }
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    throw Error("{}: prepend_scheme \"{}\" is not supported", where, scheme);
  }
  const auto prepend = scheme == "always"  ? Metaspace::Prepend::kAlways
                       : scheme == "first" ? Metaspace::Prepend::kFirst
                                           : Metaspace::Prepend::kNever;
  return std::make_unique<Metaspace>(mark, prepend,
                                     json_fields::boolean(json, "split", true, where));
}

std::unique_ptr<PreTokenizer::Step> make_step(const std::string& type, const Json& json) {
  const std::string where = "pre_tokenizer " + type;
  if (type == "Split") return make_split(json);
  if (type == "Metaspace") return make_metaspace(json);
  if (type == "Digits") {
    const bool individual = json_fields::boolean(json, "individual_digits", false, where);
    return std::make_unique<CharacterSplit>(
        is_numeric, individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous);
  }
  if (type == "Punctuation") {
    const Json& behavior = json_fields::optional(json, "behavior", where);
    return std::make_unique<CharacterSplit>(
        is_punctuation,
        behavior.is_null()
            ? SplitBehavior::kIsolated
            : parse_split_behavior(json_fields::string(json, "behavior", where), where));
  }
  if (type == "Whitespace") {
    return std::make_unique<RegexSplit>(Regex(R"(\w+|[^\w\s]+)"), SplitBehavior::kRemoved, true);
  }
  if (type == "WhitespaceSplit") {
    return std::make_unique<CharacterSplit>(is_space, SplitBehavior::kRemoved);
  }
  throw Error(
      "pre_tokenizer \"{}\" is not supported (supported: Split, ByteLevel, Digits, "
      "Metaspace, Punctuation, Whitespace, WhitespaceSplit, Sequence)",
      type);
}

// The parts of nested Sequences, in order.
void flatten(const Json& json, const TokenizerLimits& limits, int depth,
             std::vector<const Json*>& out) {
  if (json_fields::string(json, "type", "pre_tokenizer") != "Sequence") {
    out.push_back(&json);
  } else {
    if (depth == kMaxDepth)
      throw Error("pre_tokenizer: a Sequence nested deeper than {}", kMaxDepth);
    for (const Json& part : json_fields::array(json, "pretokenizers", "pre_tokenizer Sequence")) {
      flatten(part, limits, depth + 1, out);
    }
  }
  if (out.size() > limits.steps) throw Error("pre_tokenizer: more than {} steps", limits.steps);
}

}  // namespace

PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

PreTokenizer::PreTokenizer(const Json& json, const TokenizerLimits& limits) {
  std::vector<const Json*> parts;
  if (!json.is_null()) flatten(json, limits, 0, parts);
  for (const Json* part : parts) {
    const std::string& type = json_fields::string(*part, "type", "pre_tokenizer");
    if (type != "ByteLevel") {
      steps_.push_back(make_step(type, *part));
      continue;
    }
    yields_bytes_ = part == parts.back();
    const std::string where = "pre_tokenizer ByteLevel";
    const bool prefix = json_fields::boolean(*part, "add_prefix_space", true, where);
    const bool use_regex = json_fields::boolean(*part, "use_regex", true, where);
    // Last, and with nothing to add or to split: the words are bytes already.
    if (yields_bytes_ && !prefix && !use_regex) continue;
    steps_.push_back(std::make_unique<ByteLevel>(prefix, use_regex, !yields_bytes_));
  }
}

bool PreTokenizer::keeps_text() const {
  return std::all_of(steps_.begin(), steps_.end(),
                     [](const auto& step) { return step->keeps_text(); });
}

void PreTokenizer::split(TextPieces& pieces, RegexScratch& scratch) const {
  for (const auto& step : steps_) {
    pieces.next.clear();
    step->apply(pieces, scratch);
    pieces.pieces.swap(pieces.next);
  }
}

}  // namespace vamp
