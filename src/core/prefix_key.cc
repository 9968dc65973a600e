#include "core/prefix_key.h"

#include <xxhash.h>

namespace vamp {
namespace {

PrefixKey from(XXH128_hash_t hash) {
  return {hash.low64, hash.high64};
}

}  // namespace

PrefixKey root_key(uint64_t cache_salt) {
  return from(XXH3_128bits(&cache_salt, sizeof cache_salt));
}

PrefixKey child_key(const PrefixKey& parent, std::span<const TokenId> tokens) {
  const XXH128_hash_t content = XXH3_128bits(tokens.data(), tokens.size_bytes());
  const uint64_t chain[4] = {parent.low, parent.high, content.low64, content.high64};
  return from(XXH3_128bits(chain, sizeof chain));
}

}  // namespace vamp
