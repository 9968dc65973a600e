// Units used throughout. Bytes are size_t; durations are microseconds in double, as the formulas
// have them; points in time are Micros since an arbitrary start (a real or a virtual clock).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace vamp {

using Micros = double;   // microseconds
using TokenId = int32_t;

inline constexpr Micros kSecond = 1e6;
inline constexpr size_t kKiB = size_t{1} << 10;
inline constexpr size_t kMiB = size_t{1} << 20;
inline constexpr size_t kGiB = size_t{1} << 30;

// "2GiB", "512MiB", "1.5 GB", "4096" → bytes. KiB/MiB/GiB/TiB are powers of 1024, kB/MB/GB/TB of
// 1000, a bare number is bytes. Throws Error naming the text on anything else.
size_t parse_bytes(std::string_view text);

// 6291456 → "6.00 MiB".
std::string format_bytes(size_t bytes);

}  // namespace vamp
