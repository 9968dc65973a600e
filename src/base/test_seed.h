// Seeds of randomised tests: those of the test itself, or, in a soak (scripts/soak.sh), others.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>

namespace vamp {

// VAMP_SEED of the environment, if it is set. What a test only expects of its own seeds ("each kind
// of move happened often") does not hold then.
inline std::optional<uint64_t> seed_of_soak() {
  const char* seed = std::getenv("VAMP_SEED");
  return seed == nullptr ? std::nullopt : std::optional<uint64_t>(std::strtoull(seed, nullptr, 10));
}

}  // namespace vamp
