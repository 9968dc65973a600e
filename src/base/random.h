// A small seeded generator with the same stream on every platform (std:: distributions differ).
#pragma once

#include <cmath>
#include <cstdint>

namespace vamp {

// splitmix64 (Steele, Lea, Flood 2014): one 64-bit state, any seed is good.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }
  // Uniform in [0, n), n > 0. The bias is below 2^-32 for n below 2^32.
  uint64_t below(uint64_t n) { return static_cast<uint64_t>((static_cast<Wide>(next()) * n) >> 64); }
  // Uniform integer in [low, high].
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(below(static_cast<uint64_t>(high - low) + 1));
  }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  bool chance(double p) { return uniform() < p; }
  double exponential(double mean) { return -mean * std::log1p(-uniform()); }
  // Standard normal, Box-Muller.
  double normal() {
    const double u = 1.0 - uniform();
    return std::sqrt(-2.0 * std::log(u)) * std::cos(6.283185307179586 * uniform());
  }

 private:
  __extension__ typedef unsigned __int128 Wide;
  uint64_t state_;
};

}  // namespace vamp
