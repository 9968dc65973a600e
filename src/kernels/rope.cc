#include "kernels/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "base/error.h"

namespace vamp {
namespace {

// base^(-2i / dim) in f32, step by step as torch computes it.
std::vector<float> default_frequencies(double theta, int dim) {
  std::vector<float> inv_freq(static_cast<size_t>(dim / 2));
  for (size_t i = 0; i < inv_freq.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dim);
    inv_freq[i] = 1.0f / std::pow(static_cast<float>(theta), exponent);
  }
  return inv_freq;
}

// Long wavelengths are divided by the factor, short ones kept, those between interpolated.
void scale_llama3(const RopeConfig& rope, std::vector<float>& inv_freq) {
  const double old_context = rope.original_max_position;
  const double low_wavelength = old_context / rope.low_freq_factor;
  const double high_wavelength = old_context / rope.high_freq_factor;
  for (float& f : inv_freq) {
    const double wavelength = 2 * std::numbers::pi / f;
    if (wavelength > low_wavelength) {
      f = static_cast<float>(f / rope.factor);
    } else if (wavelength >= high_wavelength) {
      const double smooth = (old_context / wavelength - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
      f = static_cast<float>((1 - smooth) * f / rope.factor + smooth * f);
    }
  }
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

// YaRN (Peng et al. 2023): between two dimensions, from keeping to dividing by the factor.
void scale_yarn(const RopeConfig& rope, RopeFrequencies& out) {
  const int dim = out.rotary_dim;
  const auto correction_dim = [&](double rotations) {
    return dim * std::log(rope.original_max_position / (rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = correction_dim(rope.beta_fast), high = correction_dim(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1.0);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < out.inv_freq.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const double f = out.inv_freq[i];
    out.inv_freq[i] = static_cast<float>(f / rope.factor * ramp + f * (1 - ramp));
  }
  if (rope.attention_factor) {
    out.attention_factor = static_cast<float>(*rope.attention_factor);
  } else if (rope.mscale.value_or(0) != 0 && rope.mscale_all_dim.value_or(0) != 0) {
    out.attention_factor = static_cast<float>(yarn_mscale(rope.factor, *rope.mscale) /
                                              yarn_mscale(rope.factor, *rope.mscale_all_dim));
  } else {
    out.attention_factor = static_cast<float>(yarn_mscale(rope.factor, 1.0));
  }
}

}  // namespace

RopeFrequencies make_rope_frequencies(const RopeConfig& rope, int head_dim) {
  RopeFrequencies out;
  out.rotary_dim = static_cast<int>(head_dim * rope.partial_rotary_factor);
  VAMP_CHECK(out.rotary_dim > 0 && out.rotary_dim % 2 == 0, "rotary_dim {}", out.rotary_dim);
  out.inv_freq = default_frequencies(rope.theta, out.rotary_dim);
  switch (rope.scaling) {
    case RopeConfig::Scaling::kDefault:
      break;
    case RopeConfig::Scaling::kLinear:
      for (float& f : out.inv_freq) f = static_cast<float>(f / rope.factor);
      break;
    case RopeConfig::Scaling::kLlama3:
      scale_llama3(rope, out.inv_freq);
      break;
    case RopeConfig::Scaling::kYarn:
      scale_yarn(rope, out);
      break;
  }
  return out;
}

}  // namespace vamp
