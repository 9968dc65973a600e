#include "base/units.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "base/error.h"

namespace vamp {
namespace {

struct Unit {
  std::string_view name;
  double bytes;
};
constexpr std::array<Unit, 10> kUnits{{{"", 1},
                                       {"b", 1},
                                       {"kb", 1e3},
                                       {"mb", 1e6},
                                       {"gb", 1e9},
                                       {"tb", 1e12},
                                       {"kib", 1024.0},
                                       {"mib", 1024.0 * 1024},
                                       {"gib", 1024.0 * 1024 * 1024},
                                       {"tib", 1024.0 * 1024 * 1024 * 1024}}};

}  // namespace

size_t parse_bytes(std::string_view text) {
  const std::string copy(text);
  char* end = nullptr;
  const double value = std::strtod(copy.c_str(), &end);
  std::string unit(end);
  unit.erase(0, unit.find_first_not_of(' '));
  std::transform(unit.begin(), unit.end(), unit.begin(), [](unsigned char c) { return std::tolower(c); });
  const auto found =
      std::find_if(kUnits.begin(), kUnits.end(), [&](const Unit& u) { return u.name == unit; });
  const bool number = end != copy.c_str() && std::isfinite(value) && value >= 0 &&
                      copy.find_first_of("xX") == std::string::npos;
  if (!number || found == kUnits.end() || value * found->bytes >= 0x1p63) {
    throw Error("'{}' is not a size: write it like 512MiB, 2GiB, 1.5GB or as a number of bytes", text);
  }
  return static_cast<size_t>(std::llround(value * found->bytes));
}

std::string format_bytes(size_t bytes) {
  constexpr std::array<const char*, 5> names{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < names.size()) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.2f} {}", value, names[unit]);
}

}  // namespace vamp
