// The rotary embedding's part of config.json. Private to src/model.
#pragma once

#include "model/json_fields.h"
#include "model/model_config.h"

namespace vamp {

// Reads `rope_parameters` (transformers 5) or `rope_theta`, `rope_scaling` and
// `partial_rotary_factor` (transformers 4); where both are there the first counts, as in
// transformers. `default_partial` is the share of a head that rotates when neither says it.
RopeConfig parse_rope_config(const JsonFields& config, int max_position_embeddings,
                             double default_partial);

}  // namespace vamp
