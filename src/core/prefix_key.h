// The name of a block's content: a hash of all tokens up to its end and of the tenant's salt.
#pragma once

#include <cstdint>
#include <span>

#include "base/units.h"

namespace vamp {

// 128 bits, so that two prefixes never share a key by chance (XXH3-128 over parent key and tokens).
struct PrefixKey {
  uint64_t low = 0, high = 0;
  bool operator==(const PrefixKey&) const = default;
};

// The key above every chain of one tenant: prefixes with different salts never meet.
PrefixKey root_key(uint64_t cache_salt);
// The key of a full block that holds `tokens` and follows the content named by `parent`.
PrefixKey child_key(const PrefixKey& parent, std::span<const TokenId> tokens);

struct PrefixKeyHash {
  using is_avalanching = void;  // the key is a hash already
  size_t operator()(const PrefixKey& key) const { return key.low; }
};

}  // namespace vamp
