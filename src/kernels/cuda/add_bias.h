// Adding a bias to a product's rows.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/ops.h"

namespace vamp::cuda {

// part.out[r] += part.bias for `rows` rows; out bf16 or (kFloat) f32. Asynchronous, capturable.
void add_bias(const LinearPart& part, int rows, cudaStream_t stream);

}  // namespace vamp::cuda
