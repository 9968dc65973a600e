// Any bytes as a tokenizer.json, and as a text behind the first NUL: an Error or a tokenizer that
// works, never a crash and never endless.
#include "base/error.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t border = std::min(input.find('\0'), input.size());
  const std::string_view text = input.substr(std::min(border + 1, input.size()));
  vamp::TokenizerLimits limits;
  limits.token_ids = 1 << 16;
  try {
    const vamp::Tokenizer tokenizer(input.substr(0, border), "fuzz", {}, limits);
    const auto ids = tokenizer.encode(text);
    if (!vamp::utf8::is_valid(tokenizer.decode(ids, false))) __builtin_trap();
    vamp::Detokenizer detokenizer(tokenizer, {.stop = {"ab", "b"}});
    for (const vamp::TokenId id : ids) {
      if (!tokenizer.is_special(id) && tokenizer.token(id).empty()) __builtin_trap();
      if (!vamp::utf8::is_valid(detokenizer.push(id))) __builtin_trap();
    }
    detokenizer.finish();
  } catch (const vamp::Error&) {
  }
  return 0;
}
