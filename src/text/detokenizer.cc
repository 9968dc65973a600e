#include "text/detokenizer.h"

#include <algorithm>

namespace vamp {
namespace {

// How many bytes at the end of `text` are the beginning of `stop`, but not all of it.
size_t partial_match(std::string_view text, std::string_view stop) {
  for (size_t size = std::min(text.size(), stop.size() - 1); size > 0; --size) {
    if (text.ends_with(stop.substr(0, size))) return size;
  }
  return 0;
}

}  // namespace

Detokenizer::Detokenizer(const Tokenizer& tokenizer, DetokenizerOptions options)
    : tokenizer_(tokenizer), options_(std::move(options)) {
  std::erase_if(options_.stop, [](const std::string& stop) { return stop.empty(); });
}

std::string Detokenizer::push(TokenId token) {
  const Decoder::Prepared* prepared = tokenizer_.prepared(token);
  const bool skipped = options_.skip_special_tokens && tokenizer_.is_special(token);
  if (stopped() || !prepared || skipped) return {};
  tokenizer_.decoder().push(*prepared, true, state_, held_);
  return release(false);
}

std::string Detokenizer::finish() {
  if (stopped()) return {};
  tokenizer_.decoder().finish(state_, held_);
  return release(true);
}

std::string Detokenizer::release(bool last) {
  std::string out;
  if (find_stop(out)) return out;
  size_t keep = 0;
  if (!last) {
    for (const std::string& stop : options_.stop) {
      keep = std::max(keep, partial_match(held_, stop));
    }
  }
  out = held_.substr(0, held_.size() - keep);
  held_.erase(0, out.size());
  return out;
}

// The stop string that begins first; of several at one place the one given first.
bool Detokenizer::find_stop(std::string& out) {
  size_t best = std::string::npos;
  for (const std::string& stop : options_.stop) {
    const size_t at = held_.find(stop);
    if (at >= best) continue;
    best = at;
    stop_ = stop;
  }
  if (!stop_) return false;
  out = held_.substr(0, best + (options_.include_stop_in_output ? stop_->size() : 0));
  held_.clear();
  return true;
}

}  // namespace vamp
