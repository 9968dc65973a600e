#include "text/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/uniset.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "text/json_fields.h"
#include "text/utf8.h"

namespace vamp {

using json_fields::Json;

// One step: false when the text is unchanged (then `out` is not to be read).
class Normalizer::Step {
 public:
  virtual ~Step() = default;
  virtual bool apply(std::string_view text, RegexScratch& scratch, std::string& out) const = 0;
};

namespace {

constexpr int kMaxDepth = 8;

// Hugging Face's tables are those of Unicode 9: later characters, and one mark whose class changed
// since, are left as they are.
constexpr const char* kKnownCharacters = R"([[:age=9.0:]-[\u0EBA]])";

class UnicodeForm final : public Normalizer::Step {
 public:
  explicit UnicodeForm(const std::string& name) {
    UErrorCode status = U_ZERO_ERROR;
    known_.applyPattern(icu::UnicodeString::fromUTF8(kKnownCharacters), status).freeze();
    form_ = name == "NFC"    ? icu::Normalizer2::getNFCInstance(status)
            : name == "NFD"  ? icu::Normalizer2::getNFDInstance(status)
            : name == "NFKC" ? icu::Normalizer2::getNFKCInstance(status)
                             : icu::Normalizer2::getNFKDInstance(status);
    if (U_FAILURE(status)) throw Error("ICU has no {}: {}", name, u_errorName(status));
    filtered_ = std::make_unique<icu::FilteredNormalizer2>(*form_, known_);
  }
  bool apply(std::string_view text, RegexScratch&, std::string& out) const override {
    UErrorCode status = U_ZERO_ERROR;
    const icu::StringPiece piece(text.data(), static_cast<int32_t>(text.size()));
    if (form_->isNormalizedUTF8(piece, status)) return false;  // then by the older tables as well
    out.clear();
    icu::StringByteSink<std::string> sink(&out);
    filtered_->normalizeUTF8(0, piece, sink, nullptr, status);
    if (U_FAILURE(status)) throw Error("ICU could not normalize: {}", u_errorName(status));
    return true;
  }

 private:
  const icu::Normalizer2* form_ = nullptr;
  icu::UnicodeSet known_;
  std::unique_ptr<icu::FilteredNormalizer2> filtered_;
};

// Character by character, as Rust's char::to_lowercase: no context, U+0130 becomes two characters.
class Lowercase final : public Normalizer::Step {
 public:
  bool apply(std::string_view text, RegexScratch&, std::string& out) const override {
    out.clear();
    for (size_t at = 0; at < text.size();) {
      const utf8::Decoded c = utf8::decode(text, at);
      at += c.length;
      if (c.code_point == 0x130) {
        out.append("i\xCC\x87");
      } else {
        utf8::append(static_cast<char32_t>(u_tolower(static_cast<UChar32>(c.code_point))), out);
      }
    }
    return true;
  }
};

class StripAccents final : public Normalizer::Step {
 public:
  bool apply(std::string_view text, RegexScratch&, std::string& out) const override {
    out.clear();
    for (size_t at = 0; at < text.size();) {
      const utf8::Decoded c = utf8::decode(text, at);
      if (u_charType(static_cast<UChar32>(c.code_point)) != U_NON_SPACING_MARK) {
        out.append(text, at, c.length);
      }
      at += c.length;
    }
    return true;
  }
};

class Prepend final : public Normalizer::Step {
 public:
  explicit Prepend(std::string content) : content_(std::move(content)) {}
  bool apply(std::string_view text, RegexScratch&, std::string& out) const override {
    if (text.empty()) return false;
    out.assign(content_).append(text);
    return true;
  }

 private:
  std::string content_;
};

class Replace final : public Normalizer::Step {
 public:
  Replace(std::string literal, std::string content)
      : literal_(std::move(literal)), content_(std::move(content)) {}
  Replace(Regex regex, std::string content)
      : regex_(std::move(regex)), content_(std::move(content)) {}

  bool apply(std::string_view text, RegexScratch& scratch, std::string& out) const override {
    out.clear();
    size_t copied = 0;
    Regex::Match match;
    for (size_t from = 0; from <= text.size() && find(text, from, scratch, match);) {
      out.append(text, copied, match.begin - copied).append(content_);
      copied = from = match.end;
      if (match.begin == match.end) {  // an empty match: go on behind the next character
        if (from == text.size()) break;
        from += utf8::decode(text, from).length;
      }
    }
    if (copied == 0 && out.empty()) return false;
    out.append(text, copied, text.size() - copied);
    return true;
  }

 private:
  bool find(std::string_view text, size_t from, RegexScratch& scratch, Regex::Match& match) const {
    if (regex_) return regex_->find(text, from, scratch, match);
    const size_t at = text.find(literal_, from);
    match = {at, at + literal_.size()};
    return at != std::string_view::npos;
  }

  std::string literal_;
  std::optional<Regex> regex_;
  std::string content_;
};

std::string content_of(const Json& json, const char* key, const TokenizerLimits& limits,
                       const std::string& where) {
  const std::string& content = json_fields::string(json, key, where);
  if (content.size() > limits.replacement_bytes) {
    throw Error("\"{}\" of {} has {} bytes: the limit is {}", key, where, content.size(),
                limits.replacement_bytes);
  }
  return content;
}

std::unique_ptr<Normalizer::Step> make_replace(const Json& json, const TokenizerLimits& limits) {
  const std::string where = "normalizer Replace";
  std::string content = content_of(json, "content", limits, where);
  const Json& pattern = json_fields::required(json, "pattern", where);
  if (!json_fields::optional(pattern, "Regex", where).is_null()) {
    return std::make_unique<Replace>(Regex(json_fields::string(pattern, "Regex", where)),
                                     std::move(content));
  }
  const std::string& literal = json_fields::string(pattern, "String", where);
  if (literal.empty()) throw Error("{} has an empty pattern", where);
  return std::make_unique<Replace>(literal, std::move(content));
}

std::unique_ptr<Normalizer::Step> make_step(const std::string& type, const Json& json,
                                            const TokenizerLimits& limits) {
  if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    return std::make_unique<UnicodeForm>(type);
  }
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Prepend") {
    return std::make_unique<Prepend>(content_of(json, "prepend", limits, "normalizer Prepend"));
  }
  if (type == "Replace") return make_replace(json, limits);
  throw Error(
      "normalizer \"{}\" is not supported (supported: NFC, NFD, NFKC, NFKD, Lowercase, "
      "StripAccents, Prepend, Replace, Sequence)",
      type);
}

}  // namespace

Normalizer::Normalizer() = default;
Normalizer::~Normalizer() = default;
Normalizer::Normalizer(Normalizer&&) noexcept = default;
Normalizer& Normalizer::operator=(Normalizer&&) noexcept = default;

Normalizer::Normalizer(const Json& json, const TokenizerLimits& limits)
    : growth_(limits.normalized_growth) {
  if (!json.is_null()) add_steps(json, limits, 0);
}

void Normalizer::add_steps(const Json& json, const TokenizerLimits& limits, int depth) {
  const std::string& type = json_fields::string(json, "type", "normalizer");
  if (type != "Sequence") {
    steps_.push_back(make_step(type, json, limits));
  } else {
    if (depth == kMaxDepth) throw Error("normalizer: a Sequence nested deeper than {}", kMaxDepth);
    for (const Json& part : json_fields::array(json, "normalizers", "normalizer Sequence")) {
      add_steps(part, limits, depth + 1);
    }
  }
  if (steps_.size() > limits.steps) throw Error("normalizer: more than {} steps", limits.steps);
}

std::string_view Normalizer::normalize(std::string_view text, RegexScratch& scratch,
                                       std::string& storage) const {
  const size_t limit = growth_ * text.size() + 4096;
  std::string_view current = text;
  std::string next;
  for (const auto& step : steps_) {
    if (!step->apply(current, scratch, next)) continue;
    if (next.size() > limit) {
      throw Error("normalizing a text of {} bytes makes {} bytes: the limit is {}", text.size(),
                  next.size(), limit);
    }
    storage.swap(next);
    current = storage;
  }
  return current;
}

}  // namespace vamp
