#include "text/decoder.h"

#include <charconv>
#include <optional>

#include "base/error.h"
#include "text/byte_alphabet.h"
#include "text/json_fields.h"
#include "text/utf8.h"

namespace vamp {
namespace {

using json_fields::Json;

constexpr size_t kMaxStrip = 1024;

void replace_all(std::string& text, std::string_view what, std::string_view with) {
  size_t at = 0;
  while ((at = text.find(what, at)) != std::string::npos) {
    text.replace(at, what.size(), with);
    at += with.size();
  }
}

// "<0x0A>" → 0x0A.
std::optional<char> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return std::nullopt;
  unsigned value = 0;
  const char* const end = token.data() + 5;
  if (std::from_chars(token.data() + 3, end, value, 16).ptr != end) return std::nullopt;
  return static_cast<char>(value);
}

std::string one_character(const Json& json, const char* key, const std::string& where) {
  const std::string& text = json_fields::string(json, key, where);
  if (text.empty() || utf8::decode(text, 0).length != static_cast<int>(text.size())) {
    throw Error("\"{}\" of {} is not one character", key, where);
  }
  return text;
}

}  // namespace

Decoder::Decoder(const Json& json, const TokenizerLimits& limits) {
  if (json.is_null()) return;
  const std::string& type = json_fields::string(json, "type", "decoder");
  if (type != "Sequence") {
    add_step(json, limits);
    return;
  }
  const Json& steps = json_fields::array(json, "decoders", "decoder Sequence");
  if (steps.size() > limits.steps) throw Error("decoder: more than {} steps", limits.steps);
  if (steps.empty()) kind_ = Kind::kPieces;
  for (const Json& step : steps) {
    if (kind_ == Kind::kByteLevel || kind_ == Kind::kMetaspace) {
      throw Error("decoder Sequence with steps behind ByteLevel or Metaspace is not supported");
    }
    add_step(step, limits);
  }
}

void Decoder::add_step(const Json& json, const TokenizerLimits& limits) {
  const std::string& type = json_fields::string(json, "type", "decoder");
  const std::string where = "decoder " + type;
  const bool only_replaced = !byte_fallback_ && !fused_ && strip_content_.empty();
  const bool first = kind_ == Kind::kJoinBySpaces;
  if (first && (type == "ByteLevel" || type == "Metaspace")) {
    kind_ = Kind::kByteLevel;
    if (type == "Metaspace") set_metaspace(json);
    return;
  }
  kind_ = Kind::kPieces;
  if (type == "Replace" && only_replaced) {
    const Json& pattern = json_fields::required(json, "pattern", where);
    std::string what = json_fields::string(pattern, "String", where);
    std::string with = json_fields::string(json, "content", where);
    if (what.empty() || with.size() > limits.replacement_bytes) {
      throw Error("{}: an empty pattern, or a content of more than {} bytes", where,
                  limits.replacement_bytes);
    }
    replacements_.emplace_back(std::move(what), std::move(with));
  } else if (type == "ByteFallback" && only_replaced) {
    byte_fallback_ = true;
  } else if (type == "Fuse" && strip_content_.empty()) {
    fused_ = true;
  } else if (type == "Strip" && strip_content_.empty()) {
    strip_content_ = one_character(json, "content", where);
    const auto count = [&](const char* key) {
      return static_cast<size_t>(json_fields::natural(json_fields::required(json, key, where),
                                                      kMaxStrip,
                                                      fmt::format("\"{}\" of {}", key, where)));
    };
    strip_front_ = count("start");
    strip_back_ = count("stop");
    if (fused_ && strip_back_ > 0) throw Error("{} at the end of the text is not supported", where);
    if (byte_fallback_ && !fused_)
      throw Error("{} between ByteFallback and Fuse is not supported", where);
  } else {
    throw Error(
        "decoder \"{}\" is not supported here (supported: ByteLevel or Metaspace alone, or "
        "a Sequence of Replace, ByteFallback, Fuse, Strip in this order)",
        type);
  }
}

void Decoder::set_metaspace(const Json& json) {
  kind_ = Kind::kMetaspace;
  mark_ = one_character(json, "replacement", "decoder Metaspace");
  drop_first_mark_ = json_fields::boolean(json, "add_prefix_space", true, "decoder Metaspace");
  const Json& scheme = json_fields::optional(json, "prepend_scheme", "decoder Metaspace");
  if (!scheme.is_null()) drop_first_mark_ = scheme != "never";
}

Decoder::Prepared Decoder::prepare(std::string_view token) const {
  if (kind_ == Kind::kByteLevel) {
    auto bytes = bytes_of_alphabet(token);
    return {bytes ? std::move(*bytes) : std::string(token), false};
  }
  std::string text(token);
  if (kind_ != Kind::kPieces) return {std::move(text), false};
  for (const auto& [what, with] : replacements_) replace_all(text, what, with);
  if (byte_fallback_) {
    if (const auto byte = byte_of_token(text)) return {std::string(1, *byte), true};
  }
  if (!fused_ && !strip_content_.empty()) {
    for (size_t i = 0; i < strip_front_ && text.starts_with(strip_content_); ++i) {
      text.erase(0, strip_content_.size());
    }
    for (size_t i = 0; i < strip_back_ && text.ends_with(strip_content_); ++i) {
      text.erase(text.size() - strip_content_.size());
    }
  }
  return {std::move(text), false};
}

void Decoder::emit(std::string_view text, DecoderState& state, std::string& out) const {
  if (fused_ && state.stripping && !text.empty()) {
    while (state.stripped < strip_front_ && text.starts_with(strip_content_)) {
      text.remove_prefix(strip_content_.size());
      ++state.stripped;
    }
    state.stripping = text.empty() && state.stripped < strip_front_;
  }
  out.append(text);
}

void Decoder::end_byte_run(DecoderState& state, std::string& out) const {
  if (state.pending.empty()) return;
  if (utf8::is_valid(state.pending)) {
    emit(state.pending, state, out);
  } else {
    for (size_t i = 0; i < state.pending.size(); ++i) emit(utf8::kReplacementBytes, state, out);
  }
  state.pending.clear();
}

void Decoder::push(const Prepared& token, bool eager, DecoderState& state, std::string& out) const {
  const bool first = std::exchange(state.first, false);
  switch (kind_) {
    case Kind::kJoinBySpaces:
      if (!first) out.push_back(' ');
      out.append(token.text);
      return;
    case Kind::kMetaspace: {
      std::string text = token.text;
      replace_all(text, mark_, first && drop_first_mark_ ? "" : " ");
      out.append(text);
      return;
    }
    case Kind::kByteLevel: {
      state.pending.append(token.text);
      const size_t complete = utf8::complete_length(state.pending);
      utf8::append_replaced(std::string_view(state.pending).substr(0, complete), out);
      state.pending.erase(0, complete);
      return;
    }
    case Kind::kPieces:
      if (!token.is_byte) {
        end_byte_run(state, out);
        emit(token.text, state, out);
        return;
      }
      state.pending.append(token.text);
      if (eager && utf8::is_valid(state.pending)) end_byte_run(state, out);
      return;
  }
}

void Decoder::finish(DecoderState& state, std::string& out) const {
  if (kind_ == Kind::kByteLevel) {
    utf8::append_replaced(state.pending, out);
    state.pending.clear();
  } else {
    end_byte_run(state, out);
  }
}

}  // namespace vamp
