// Shapes of the models that the simulator is calibrated on, as their config.json has them.
#pragma once

#include "model/model_config.h"

namespace vamp {

ModelConfig qwen3_30b_a3b();
ModelConfig qwen3_next_80b_a3b();
// SmolLM2-135M made a Mixtral: top 2 of `experts` experts of `expert_width` neurons (the dense
// model has 1,536).
ModelConfig smollm2_moe(int experts, int expert_width);

}  // namespace vamp
