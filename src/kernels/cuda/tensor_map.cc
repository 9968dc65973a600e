#include "kernels/cuda/tensor_map.h"

#include <algorithm>

#include "kernels/cuda/cuda_check.h"

namespace vamp::cuda {
namespace {

using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                            const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                            CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                            CUtensorMapFloatOOBfill);

// The driver's function, looked up when first needed: the program also starts without a driver.
Encode encode_function() {
  static const Encode function = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    check(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                           cudaEnableDefault, &found),
          "looking up cuTensorMapEncodeTiled");
    VAMP_CHECK(found == cudaDriverEntryPointSuccess && entry,
               "the CUDA driver has no cuTensorMapEncodeTiled; it must be 12.0 or later");
    return reinterpret_cast<Encode>(entry);
  }();
  return function;
}

CUtensorMap encode(const void* data, int dims, const cuuint64_t* sizes, const cuuint64_t* strides,
                   const cuuint32_t* box, CUtensorMapL2promotion promotion) {
  constexpr cuuint32_t kDense[4] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult result = encode_function()(
      &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(dims),
      const_cast<void*>(data), sizes, strides, box, kDense, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  VAMP_CHECK(result == CUDA_SUCCESS,
             "tensor map of {} x {} x {}, strides {} and {}: driver error {}", sizes[2], sizes[1],
             sizes[0], strides[0], strides[1], static_cast<int>(result));
  return map;
}
cuuint64_t at_least_one(int n) {
  return static_cast<cuuint64_t>(std::max(1, n));
}

}  // namespace

CUtensorMap bf16_tensor_map(const void* data, int cols, int rows, int matrices,
                            size_t matrix_stride, int box_rows, CUtensorMapL2promotion promotion) {
  const cuuint64_t sizes[3] = {at_least_one(cols), at_least_one(rows), at_least_one(matrices)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(cols) * 2, matrix_stride};
  const cuuint32_t box[3] = {kTensorMapCols, static_cast<cuuint32_t>(box_rows), 1};
  return encode(data, 3, sizes, strides, box, promotion);
}

CUtensorMap bf16_wide_tensor_map(const void* data, int cols, int rows, int matrices,
                                 size_t matrix_stride, int box_rows, int box_cols) {
  VAMP_CHECK(cols % kTensorMapCols == 0 && box_cols % kTensorMapCols == 0,
             "tensor map of {} columns by {}", cols, box_cols);
  const cuuint64_t sizes[4] = {kTensorMapCols, at_least_one(rows),
                               at_least_one(cols / kTensorMapCols), at_least_one(matrices)};
  const cuuint64_t strides[3] = {static_cast<cuuint64_t>(cols) * 2, kTensorMapCols * 2,
                                 matrix_stride};
  const cuuint32_t box[4] = {kTensorMapCols, static_cast<cuuint32_t>(box_rows),
                             static_cast<cuuint32_t>(box_cols / kTensorMapCols), 1};
  return encode(data, 4, sizes, strides, box, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

}  // namespace vamp::cuda
