#include "text/split_behavior.h"

#include <algorithm>

#include "base/error.h"

namespace vamp {
namespace {

// Parts joined as tokenizers does it, going through them in the given order: a delimiter joins what
// came before it unless that was a delimiter too.
template <typename Extend>
void merge_delimiters(std::vector<SplitPart>& parts, Extend extend) {
  size_t kept = 0;
  bool after_delimiter = false;
  for (const SplitPart part : parts) {
    if (part.delimiter && !after_delimiter && kept > 0) {
      extend(parts[kept - 1], part);
    } else {
      parts[kept++] = part;
    }
    after_delimiter = part.delimiter;
  }
  parts.resize(kept);
}

void merge_alike(std::vector<SplitPart>& parts) {
  size_t kept = 0;
  bool previous = false;
  for (const SplitPart part : parts) {
    if (part.delimiter == previous && kept > 0) {
      parts[kept - 1].end = part.end;
    } else {
      parts[kept++] = part;
    }
    previous = part.delimiter;
  }
  parts.resize(kept);
}

}  // namespace

SplitBehavior parse_split_behavior(const std::string& name, const std::string& where) {
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  throw Error("{}: behavior \"{}\" is not supported", where, name);
}

void append_split(const TextPiece& whole, std::vector<SplitPart>& parts, SplitBehavior behavior,
                  std::vector<TextPiece>& out) {
  switch (behavior) {
    case SplitBehavior::kMergedWithPrevious:
      merge_delimiters(parts, [](SplitPart& kept, const SplitPart& part) { kept.end = part.end; });
      break;
    case SplitBehavior::kMergedWithNext:
      std::reverse(parts.begin(), parts.end());
      merge_delimiters(parts,
                       [](SplitPart& kept, const SplitPart& part) { kept.begin = part.begin; });
      std::reverse(parts.begin(), parts.end());
      break;
    case SplitBehavior::kContiguous:
      merge_alike(parts);
      break;
    case SplitBehavior::kRemoved:
    case SplitBehavior::kIsolated:
      break;
  }
  for (const SplitPart& part : parts) {
    if (part.begin == part.end || (behavior == SplitBehavior::kRemoved && part.delimiter)) continue;
    out.push_back(
        {whole.text.substr(part.begin, part.end - part.begin), whole.at_start && part.begin == 0});
  }
}

}  // namespace vamp
