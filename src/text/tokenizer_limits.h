// What a tokenizer.json may ask for at most. The file comes with a model from anywhere: a hostile
// one must end in an Error, neither in a crash nor in all of the memory.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vamp {

struct TokenizerLimits {
  size_t file_bytes = size_t{1} << 29;    // tokenizer.json as a whole
  int64_t token_ids = int64_t{1} << 22;   // every id is below this; tables are this long at most
  size_t added_tokens = size_t{1} << 17;  // entries of added_tokens
  size_t added_token_bytes = 1024;        // one added token's content
  size_t steps = 64;                      // parts of one Sequence, nested ones counted
  size_t replacement_bytes = 64;          // a Replace's or Prepend's content
  size_t normalized_growth = 32;          // bytes of normalized text per byte of text
};

}  // namespace vamp
