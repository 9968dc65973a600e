#include "text/byte_alphabet.h"

#include "text/utf8.h"

namespace vamp {
namespace {

constexpr bool is_printable(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

constexpr std::array<char32_t, 256> make_alphabet() {
  std::array<char32_t, 256> alphabet{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    alphabet[byte] = is_printable(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return alphabet;
}

constexpr std::array<char32_t, 256> kAlphabet = make_alphabet();
constexpr char32_t kEnd = 0x144;  // 68 bytes are not printable

constexpr std::array<int16_t, kEnd> make_inverse() {
  std::array<int16_t, kEnd> inverse{};
  for (auto& byte : inverse) byte = -1;
  for (int byte = 0; byte < 256; ++byte) inverse[kAlphabet[byte]] = static_cast<int16_t>(byte);
  return inverse;
}

constexpr std::array<int16_t, kEnd> kInverse = make_inverse();

}  // namespace

const std::array<char32_t, 256>& byte_alphabet() {
  return kAlphabet;
}

std::optional<std::string> bytes_of_alphabet(std::string_view token) {
  std::string bytes;
  bytes.reserve(token.size());
  for (size_t at = 0; at < token.size();) {
    const utf8::Decoded c = utf8::decode(token, at);
    if (!c.valid || c.code_point >= kEnd || kInverse[c.code_point] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(kInverse[c.code_point]));
    at += c.length;
  }
  return bytes;
}

std::string alphabet_of_bytes(std::string_view bytes) {
  std::string token;
  token.reserve(2 * bytes.size());
  for (const char byte : bytes) utf8::append(kAlphabet[static_cast<unsigned char>(byte)], token);
  return token;
}

}  // namespace vamp
