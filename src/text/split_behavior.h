// What a pre-tokenizer does with the delimiters it finds (tokenizers' SplitDelimiterBehavior).
#pragma once

#include <string>
#include <vector>

#include "text/pre_tokenizer.h"

namespace vamp {

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

// "Isolated" and so on; throws Error naming `where` on anything else.
SplitBehavior parse_split_behavior(const std::string& name, const std::string& where);

// A part of a text: a delimiter, or what lies between two. All of them cover the text, in order.
struct SplitPart {
  size_t begin = 0, end = 0;
  bool delimiter = false;
};

// Appends the pieces of `whole` that remain, none of them empty. `parts` is used up as scratch.
void append_split(const TextPiece& whole, std::vector<SplitPart>& parts, SplitBehavior behavior,
                  std::vector<TextPiece>& out);

// Delimiters at [begin, end) become parts one by one; the gaps between them as well.
class SplitParts {
 public:
  explicit SplitParts(std::vector<SplitPart>& parts) : parts_(parts) { parts_.clear(); }
  void delimiter(size_t begin, size_t end, bool invert = false) {
    if (begin > end_) parts_.push_back({end_, begin, invert});
    parts_.push_back({begin, end, !invert});
    end_ = end;
  }
  void finish(size_t size, bool invert = false) {
    if (end_ < size) parts_.push_back({end_, size, invert});
  }
  size_t end() const { return end_; }

 private:
  std::vector<SplitPart>& parts_;
  size_t end_ = 0;
};

}  // namespace vamp
