// Dense products of some 9 to 256 rows: a matrix too small to give every multiprocessor a tile of
// its own is cut along K too, and its weights are asked for before the kernel in front has ended.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ops.h"

namespace vamp::cuda {

// Most rows that linear_split takes.
inline constexpr int kSplitMaxRows = 256;

// Whether the device can hold all of a product's blocks at once; else a persistent kernel is
// better.
bool linear_split_takes(const LinearPart& part, int rows);

// part.out = x Wᵀ (+ bias) (+ part.out), as Ops::linear has it: x [rows, K] bf16, rows dense; W
// bf16; out bf16 or (kFloat) f32; sums in f32, in an order that depends on the bucket of rows (16,
// 32, then by 64) and the device. 1 <= rows <= kSplitMaxRows, K and N multiples of 8, pointers
// 16-byte aligned. Asynchronous, capturable.
void linear_split(const __nv_bfloat16* x, int rows, const LinearPart& part, cudaStream_t stream);

}  // namespace vamp::cuda
