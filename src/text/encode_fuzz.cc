// Any bytes as text: a byte-level tokenizer must give it back, piece by piece as in one go, and
// merge as the plain definition of byte-pair encoding does.
#include <nlohmann/json.hpp>

#include "text/byte_alphabet.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

namespace {

using nlohmann::json;

constexpr std::pair<const char*, const char*> kMerges[] = {
    {"a", "b"},       {"ab", "ab"},         {"e", "r"}, {" ", "t"},   {"h", "er"},
    {" ", " "},       {"  ", "  "},         {"a", "a"}, {"aa", "aa"}, {"aa", "b"},
    {"\xF0", "\x9F"}, {"\xF0\x9F", "\x98"}, {"0", "0"}};

json tokenizer_json(bool split) {
  json vocab = json::object(), merges = json::array();
  for (int byte = 0; byte < 256; ++byte) {
    const char c = static_cast<char>(byte);
    vocab[vamp::alphabet_of_bytes({&c, 1})] = byte;
  }
  for (const auto& [left, right] : kMerges) {
    const std::string a = vamp::alphabet_of_bytes(left), b = vamp::alphabet_of_bytes(right);
    if (!vocab.contains(a + b)) vocab[a + b] = vocab.size();
    merges.push_back({a, b});
  }
  return {
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", split}}},
      {"decoder", {{"type", "ByteLevel"}}}};
}

// Merges the best pair everywhere it occurs, leftmost first, until no merge applies.
std::vector<std::string> plain_merges(std::string_view text) {
  std::vector<std::string> symbols;
  for (const char c : text) symbols.emplace_back(1, c);
  while (true) {
    size_t best_rank = std::size(kMerges), best = 0;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (symbols[i] == kMerges[rank].first && symbols[i + 1] == kMerges[rank].second) {
          best_rank = rank;
          best = i;
        }
      }
    }
    if (best_rank == std::size(kMerges)) return symbols;
    symbols[best] += symbols[best + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }
}

void check(const vamp::Tokenizer& tokenizer, const std::string& text, bool split) {
  const auto ids = tokenizer.encode(text);
  if (tokenizer.decode(ids) != text) __builtin_trap();
  vamp::Detokenizer detokenizer(tokenizer, {});
  std::string streamed;
  for (const vamp::TokenId id : ids) streamed += detokenizer.push(id);
  if (streamed + detokenizer.finish() != text) __builtin_trap();
  if (split || text.size() > 300) return;
  const auto expected = plain_merges(text);
  if (ids.size() != expected.size()) __builtin_trap();
  for (size_t i = 0; i < ids.size(); ++i) {
    if (tokenizer.bytes(ids[i]) != expected[i]) __builtin_trap();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const vamp::Tokenizer whole(tokenizer_json(false).dump(), "whole");
  static const vamp::Tokenizer words(tokenizer_json(true).dump(), "words");
  std::string text;
  vamp::utf8::append_replaced({reinterpret_cast<const char*>(data), size}, text);
  check(whole, text, false);
  check(words, text, true);
  return 0;
}
