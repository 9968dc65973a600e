// API keys, and the secrets that follow from them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/http/message.h"

namespace vamp {

using Digest = std::array<unsigned char, 32>;

// SHA-256 of the parts, each preceded by its length.
Digest sha256(std::initializer_list<std::string_view> parts);
uint64_t first_bytes(const Digest& digest);

// The keys that open the server. Immutable.
class KeyRing {
 public:
  explicit KeyRing(const std::vector<std::string>& keys);

  bool open() const { return digests_.empty(); }  // no key is needed
  // "Authorization: Bearer KEY" or "x-api-key: KEY". Takes the same time for every wrong key.
  bool admits(const HttpRequest& request) const;
  // By the first of the keys, whose holder runs the server; or no key is needed.
  bool admits_operator(const HttpRequest& request) const;
  // Of the request's tenant: prefixes are shared only within one salt, so that no tenant can tell
  // from the time to first token what another has sent. `extra` is the request's own cache_salt. 0
  // without a key and without `extra`.
  uint64_t cache_salt(const HttpRequest& request, std::string_view extra) const;

 private:
  static bool admits(const HttpRequest& request, std::span<const Digest> digests);
  std::vector<Digest> digests_;
};

// Keys of a file, one a line; '#' begins a comment. Throws Error for a file that cannot be read,
// holds no key, or that others may read.
std::vector<std::string> read_key_file(const std::string& path);

}  // namespace vamp
