#include "text/bpe.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "text/byte_alphabet.h"
#include "text/utf8.h"

namespace vamp {
namespace {

constexpr uint32_t kNoMerge = ~uint32_t{0};
// Up to here a scan for the best pair is faster than a heap.
constexpr size_t kShortWord = 48;
constexpr size_t kCacheSlots = size_t{1} << 14;

uint64_t pair_key(TokenId left, TokenId right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

// One cache line. A word that does not fit is not cached.
struct alignas(64) BpeScratch::CachedWord {
  uint8_t length = 0;  // 0: nothing here
  uint8_t count = 0;
  char word[30];
  TokenId tokens[8];
};

struct BpeScratch::Symbol {
  TokenId token;
  int32_t previous, next;  // -1: none
};

// A pair that could be merged; the lowest rank goes first, then the leftmost.
struct BpeScratch::Candidate {
  uint32_t rank;
  int32_t position;
  TokenId left, right, result;
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

BpeScratch::BpeScratch() : cache_(std::make_unique<CachedWord[]>(kCacheSlots)) {}
BpeScratch::~BpeScratch() = default;

std::optional<TokenId> BpeModel::id_of(std::string_view token) const {
  const auto it = ids_.find(std::string(token));
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

const BpeModel::Merge* BpeModel::merge_of(TokenId left, TokenId right) const {
  const auto it = merges_.find(pair_key(left, right));
  return it == merges_.end() ? nullptr : &it->second;
}

void BpeModel::encode(std::string_view word, BpeScratch& scratch, std::vector<TokenId>& out) const {
  using CachedWord = BpeScratch::CachedWord;
  if (word.empty()) return;
  if (word.size() > sizeof(CachedWord::word)) return encode_uncached(word, scratch, out);
  CachedWord& slot = scratch.cache_[XXH3_64bits(word.data(), word.size()) % kCacheSlots];
  if (slot.length == word.size() && std::memcmp(slot.word, word.data(), word.size()) == 0) {
    out.insert(out.end(), slot.tokens, slot.tokens + slot.count);
    return;
  }
  const size_t before = out.size();
  encode_uncached(word, scratch, out);
  const size_t count = out.size() - before;
  if (count > std::size(slot.tokens)) return;
  slot.length = static_cast<uint8_t>(word.size());
  slot.count = static_cast<uint8_t>(count);
  std::memcpy(slot.word, word.data(), word.size());
  std::copy_n(out.end() - static_cast<ptrdiff_t>(count), count, slot.tokens);
}

void BpeModel::encode_uncached(std::string_view word, BpeScratch& scratch,
                               std::vector<TokenId>& out) const {
  if (ignore_merges_) {
    if (const auto it = words_.find(std::string(word)); it != words_.end()) {
      out.push_back(it->second);
      return;
    }
  }
  first_symbols(word, scratch.symbols_);
  if (scratch.symbols_.size() <= kShortWord) {
    merge_short(scratch);
  } else {
    merge_long(scratch);
  }
  out.insert(out.end(), scratch.symbols_.begin(), scratch.symbols_.end());
}

bool BpeModel::append_byte_tokens(std::string_view character, std::vector<TokenId>& symbols) const {
  for (const char byte : character) {
    if (fallback_[static_cast<unsigned char>(byte)] < 0) return false;
  }
  for (const char byte : character) symbols.push_back(fallback_[static_cast<unsigned char>(byte)]);
  return true;
}

// Characters that the vocabulary lacks become byte tokens, else the unknown token (one for a run of
// them with fuse_unk), else nothing. As in tokenizers, a pending unknown token is written only once
// a known character follows: byte tokens pass before it.
void BpeModel::first_symbols(std::string_view word, std::vector<TokenId>& symbols) const {
  symbols.clear();
  bool pending = false;
  std::string written;
  for (size_t at = 0; at < word.size();) {
    TokenId token = -1;
    const size_t length = bytes_ ? 1 : static_cast<size_t>(utf8::decode(word, at).length);
    const std::string_view character = word.substr(at, length);
    at += length;
    if (bytes_) {
      token = byte_symbols_[static_cast<unsigned char>(character[0])];
    } else if (const auto it = words_.find(std::string(character)); it != words_.end()) {
      token = it->second;
    }
    if (token >= 0) {
      if (pending) symbols.push_back(*unknown_);
      pending = false;
      symbols.push_back(token);
      continue;
    }
    if (byte_fallback_) {
      // The bytes of the character as the vocabulary writes it.
      written = bytes_ ? alphabet_of_bytes(character) : std::string(character);
      if (append_byte_tokens(written, symbols)) continue;
    }
    if (!unknown_) continue;
    if (pending && !fuse_unknown_) symbols.push_back(*unknown_);
    pending = true;
  }
  if (pending) symbols.push_back(*unknown_);
}

void BpeModel::merge_short(BpeScratch& scratch) const {
  std::vector<TokenId>& symbols = scratch.symbols_;
  std::vector<uint32_t>& ranks = scratch.ranks_;  // of the pair that begins at each symbol
  const auto rank_at = [&](size_t i) {
    const Merge* merge = merge_of(symbols[i], symbols[i + 1]);
    return merge ? merge->rank : kNoMerge;
  };
  if (symbols.size() < 2) return;
  ranks.resize(symbols.size() - 1);
  for (size_t i = 0; i < ranks.size(); ++i) ranks[i] = rank_at(i);
  while (!ranks.empty()) {
    const auto best = std::min_element(ranks.begin(), ranks.end());
    if (*best == kNoMerge) return;
    const size_t i = static_cast<size_t>(best - ranks.begin());
    symbols[i] = merge_of(symbols[i], symbols[i + 1])->result;
    symbols.erase(symbols.begin() + static_cast<ptrdiff_t>(i) + 1);
    ranks.erase(best);
    if (i > 0) ranks[i - 1] = rank_at(i - 1);
    if (i < ranks.size()) ranks[i] = rank_at(i);
  }
}

void BpeModel::merge_long(BpeScratch& scratch) const {
  std::vector<BpeScratch::Symbol>& links = scratch.links_;
  std::vector<BpeScratch::Candidate>& heap = scratch.heap_;
  links.clear();
  heap.clear();
  const auto count = static_cast<int32_t>(scratch.symbols_.size());
  for (int32_t i = 0; i < count; ++i) {
    links.push_back({scratch.symbols_[static_cast<size_t>(i)], i - 1, i + 1 < count ? i + 1 : -1});
  }
  const auto at = [&](int32_t i) -> BpeScratch::Symbol& { return links[static_cast<size_t>(i)]; };
  const auto consider = [&](int32_t position) {
    const int32_t next = position < 0 ? -1 : at(position).next;
    if (next < 0) return;
    const TokenId left = at(position).token, right = at(next).token;
    const Merge* merge = merge_of(left, right);
    if (!merge) return;
    heap.push_back({merge->rank, position, left, right, merge->result});
    std::push_heap(heap.begin(), heap.end());
  };
  for (int32_t i = 0; i < count; ++i) consider(i);
  while (!heap.empty()) {
    const BpeScratch::Candidate best = heap.front();
    std::pop_heap(heap.begin(), heap.end());
    heap.pop_back();
    BpeScratch::Symbol& left = at(best.position);
    // Either side may have been merged since: a symbol that is gone holds no token.
    if (left.token != best.left || left.next < 0 || at(left.next).token != best.right) continue;
    BpeScratch::Symbol& right = at(left.next);
    left.token = best.result;
    left.next = right.next;
    right.token = -1;
    if (left.next >= 0) at(left.next).previous = best.position;
    consider(left.previous);
    consider(best.position);
  }
  scratch.symbols_.clear();
  for (const BpeScratch::Symbol& symbol : links) {
    if (symbol.token >= 0) scratch.symbols_.push_back(symbol.token);
  }
}

}  // namespace vamp
