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

}  // namespace

CUtensorMap bf16_tensor_map(const void* data, int cols, int rows, int matrices,
                            size_t matrix_stride, int box_rows, CUtensorMapL2promotion promotion) {
  const auto dim = [](int n) { return static_cast<cuuint64_t>(std::max(1, n)); };
  const cuuint64_t dims[3] = {dim(cols), dim(rows), dim(matrices)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(cols) * 2, matrix_stride};
  const cuuint32_t box[3] = {kTensorMapCols, static_cast<cuuint32_t>(box_rows), 1};
  const cuuint32_t element_strides[3] = {1, 1, 1};
  CUtensorMap map;
  const CUresult result =
      encode_function()(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<void*>(data), dims,
                        strides, box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                        CU_TENSOR_MAP_SWIZZLE_128B, promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  VAMP_CHECK(result == CUDA_SUCCESS, "tensor map of {} x {} x {}, stride {}: driver error {}",
             matrices, rows, cols, matrix_stride, static_cast<int>(result));
  return map;
}

}  // namespace vamp::cuda
