#include "server/auth.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/stat.h>

#include <cstring>
#include <sstream>

#include "base/error.h"
#include "base/file.h"

namespace vamp {
namespace {

std::string_view trimmed(std::string_view text) {
  const auto first = text.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

std::string_view presented_key(const HttpRequest& request) {
  if (const std::string* bearer = request.header("authorization")) {
    constexpr std::string_view kScheme = "bearer ";
    std::string_view text = *bearer;
    if (text.size() > kScheme.size() &&
        strncasecmp(text.data(), kScheme.data(), kScheme.size()) == 0) {
      return trimmed(text.substr(kScheme.size()));
    }
  }
  const std::string* key = request.header("x-api-key");
  return key ? trimmed(*key) : std::string_view();
}

}  // namespace

Digest sha256(std::initializer_list<std::string_view> parts) {
  std::string all;
  for (const std::string_view part : parts) {
    all += std::to_string(part.size());
    all += ':';
    all += part;
  }
  Digest digest;
  SHA256(reinterpret_cast<const unsigned char*>(all.data()), all.size(), digest.data());
  return digest;
}

uint64_t first_bytes(const Digest& digest) {
  uint64_t value = 0;
  std::memcpy(&value, digest.data(), sizeof value);
  return value;
}

KeyRing::KeyRing(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    if (key.empty() || trimmed(key) != key)
      throw Error("an API key is empty or has blanks around it: no request can bring it");
    digests_.push_back(sha256({key}));
  }
}

bool KeyRing::admits(const HttpRequest& request) const {
  return open() || admits(request, digests_);
}

bool KeyRing::admits_operator(const HttpRequest& request) const {
  return open() || admits(request, std::span(digests_).first(1));
}

bool KeyRing::admits(const HttpRequest& request, std::span<const Digest> digests) {
  const std::string_view key = presented_key(request);
  if (key.empty()) return false;  // whatever the keys are, none is no key
  const Digest presented = sha256({key});
  bool known = false;
  for (const Digest& digest : digests)
    known |= CRYPTO_memcmp(digest.data(), presented.data(), digest.size()) == 0;
  return known;
}

uint64_t KeyRing::cache_salt(const HttpRequest& request, std::string_view extra) const {
  const std::string_view key = open() ? std::string_view() : presented_key(request);
  if (key.empty() && extra.empty()) return 0;
  return first_bytes(sha256({"cache salt", key, extra}));
}

std::vector<std::string> read_key_file(const std::string& path) {
  const std::string text = read_text_file(path, kMiB);
  struct stat info {};
  if (stat(path.c_str(), &info) == 0 && (info.st_mode & 077) != 0)
    throw Error("--api-key-file {}: others may read it; chmod 600 it", path);
  std::vector<std::string> keys;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const std::string_view key = trimmed(std::string_view(line).substr(0, line.find('#')));
    if (!key.empty()) keys.emplace_back(key);
  }
  if (keys.empty()) throw Error("--api-key-file {}: no key in it", path);
  return keys;
}

}  // namespace vamp
