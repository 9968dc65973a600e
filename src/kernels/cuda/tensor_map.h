// Descriptors for the tensor copy unit (TMA): which box of a row-major bf16 matrix a copy brings,
// 128-byte swizzled, with zeros for what lies outside.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

namespace vamp::cuda {

// A stack of `matrices` [rows, cols] matrices of bf16, `matrix_stride` bytes apart, rows dense. A
// copy takes box_rows rows of one matrix, 64 columns of each. data 16-byte aligned, cols a multiple
// of 8, matrix_stride of 16. Only what a copy's box covers is ever read: the address range may have
// holes. `promotion`: in pieces of how many bytes L2 reads memory at least.
CUtensorMap bf16_tensor_map(const void* data, int cols, int rows, int matrices,
                            size_t matrix_stride, int box_rows,
                            CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_256B);

// The same with boxes of many columns: `box_cols`, a multiple of 64, of each of box_rows rows. In
// shared memory they lie as matrices of 64 columns one behind the other, each swizzled as above. A
// copy names (0, row, column / 64, matrix). cols a multiple of 64.
CUtensorMap bf16_wide_tensor_map(const void* data, int cols, int rows, int matrices,
                                 size_t matrix_stride, int box_rows, int box_cols);

// Columns of a box: 128 bytes, one line of the swizzle.
inline constexpr int kTensorMapCols = 64;

}  // namespace vamp::cuda
