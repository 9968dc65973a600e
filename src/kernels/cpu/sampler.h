// From one row of logits to a token.
#pragma once

#include <vector>

#include "kernels/cpu/kernel_table.h"
#include "kernels/ops.h"

namespace vamp::cpu {

// Overwrites `logits` [vocab]. A function of its arguments alone. See SampleParams.
Sample sample_row(const KernelTable& kernels, float* logits, int vocab, const SampleParams& params);

// The random number in [0, 1) of a request's draw.
double draw(uint64_t seed, uint64_t counter);

}  // namespace vamp::cpu
