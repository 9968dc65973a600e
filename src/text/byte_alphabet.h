// GPT-2's alphabet of bytes: each byte is written as one printable character, so that a vocabulary
// of byte strings fits into JSON. Printable Latin-1 stands for itself, the others follow from
// U+0100.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>

namespace vamp {

// The character of each byte.
const std::array<char32_t, 256>& byte_alphabet();

// "Ġthe" → " the"; nullopt when a character is not of the alphabet.
std::optional<std::string> bytes_of_alphabet(std::string_view token);

// " the" → "Ġthe".
std::string alphabet_of_bytes(std::string_view bytes);

}  // namespace vamp
