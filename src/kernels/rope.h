// Rotary position embedding: the frequencies, as Hugging Face transformers computes them
// (modeling_rope_utils.py: default, linear, llama3, yarn).
#pragma once

#include <vector>

#include "model/model_config.h"

namespace vamp {

struct RopeFrequencies {
  int rotary_dim = 0;             // of a head's head_dim elements, these rotate
  float attention_factor = 1.0f;  // multiplies cos and sin (yarn)
  std::vector<float> inv_freq;    // [rotary_dim / 2], radians per position
};

RopeFrequencies make_rope_frequencies(const RopeConfig& rope, int head_dim);

}  // namespace vamp
