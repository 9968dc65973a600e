// What the prefix cache comes to hold and what it loses, told so that a router can keep a copy of
// its index.
#pragma once

#include <optional>
#include <vector>

#include "core/prefix_key.h"

namespace vamp {

enum class CacheTier { kDevice, kHost };

struct KvEvent {
  enum class Kind { kStored, kRemoved, kCleared };
  Kind kind = Kind::kCleared;  // kCleared: no tier holds anything any more
  CacheTier tier = CacheTier::kDevice;
  // kStored: blocks of one chain, each the next one's parent. kRemoved: as they went.
  std::vector<PrefixKey> keys;
  std::optional<PrefixKey> parent;  // kStored: of the first; none at the beginning of a prompt
  std::vector<TokenId> tokens;      // kStored: what the blocks hold, equally many each
};

}  // namespace vamp
