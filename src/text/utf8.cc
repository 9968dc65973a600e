#include "text/utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace vamp::utf8 {
namespace {

// A lead byte's sequence length and the range of its second byte; length 0: not a lead byte.
struct Lead {
  int length;
  uint8_t low, high;
};

Lead lead_of(uint8_t byte) {
  if (byte < 0x80) return {1, 0, 0};
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte < 0xF0) {
    return {3, static_cast<uint8_t>(byte == 0xE0 ? 0xA0 : 0x80),
            static_cast<uint8_t>(byte == 0xED ? 0x9F : 0xBF)};
  }
  if (byte < 0xF5) {
    return {4, static_cast<uint8_t>(byte == 0xF0 ? 0x90 : 0x80),
            static_cast<uint8_t>(byte == 0xF4 ? 0x8F : 0xBF)};
  }
  return {0, 0, 0};
}

// How many bytes from `at` on are ASCII, eight at a time.
size_t ascii_run(std::string_view text, size_t at) {
  const size_t begin = at;
  while (at + 8 <= text.size()) {
    uint64_t chunk;
    std::memcpy(&chunk, text.data() + at, 8);
    if (chunk & 0x8080808080808080ull) break;
    at += 8;
  }
  while (at < text.size() && static_cast<uint8_t>(text[at]) < 0x80) ++at;
  return at - begin;
}

}  // namespace

Decoded decode(std::string_view text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  const uint8_t first = byte(at);
  const Lead lead = lead_of(first);
  if (lead.length == 1) return {first, 1, true, false};
  if (lead.length == 0) return {};
  char32_t code_point = first & (0x7F >> lead.length);
  for (int i = 1; i < lead.length; ++i) {
    if (at + i >= text.size()) return {kReplacement, i, false, true};
    const uint8_t next = byte(at + i);
    const uint8_t low = i == 1 ? lead.low : 0x80, high = i == 1 ? lead.high : 0xBF;
    if (next < low || next > high) return {kReplacement, i, false, false};
    code_point = code_point << 6 | (next & 0x3F);
  }
  return {code_point, lead.length, true, false};
}

void append(char32_t c, std::string& out) {
  const auto put = [&](char32_t value) { out.push_back(static_cast<char>(value)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool is_valid(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    at += ascii_run(text, at);
    if (at == text.size()) break;
    const Decoded decoded = decode(text, at);
    if (!decoded.valid) return false;
    at += decoded.length;
  }
  return true;
}

void append_replaced(std::string_view text, std::string& out) {
  size_t copied = 0;
  for (size_t at = 0; at < text.size();) {
    at += ascii_run(text, at);
    if (at == text.size()) break;
    const Decoded decoded = decode(text, at);
    if (!decoded.valid) {
      out.append(text, copied, at - copied);
      out.append(kReplacementBytes);
      copied = at + decoded.length;
    }
    at += decoded.length;
  }
  out.append(text, copied, text.size() - copied);
}

size_t complete_length(std::string_view text) {
  // A character has at most four bytes: an unfinished one starts within the last three.
  for (size_t back = 1; back <= std::min<size_t>(3, text.size()); ++back) {
    const size_t at = text.size() - back;
    const uint8_t byte = static_cast<uint8_t>(text[at]);
    if ((byte & 0xC0) == 0x80) continue;
    return decode(text, at).truncated ? at : text.size();
  }
  return text.size();
}

}  // namespace vamp::utf8
