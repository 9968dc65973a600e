// cuBLASLt's functions, looked up when first needed: the library is large, and a program that has
// no GPU to use must start without it.
#pragma once

#include <cublasLt.h>

namespace vamp::cuda {

struct CublasLt {
#define VAMP_CUBLAS_LT(name) decltype(&::cublasLt##name) name = nullptr
  VAMP_CUBLAS_LT(Create);
  VAMP_CUBLAS_LT(Destroy);
  VAMP_CUBLAS_LT(Matmul);
  VAMP_CUBLAS_LT(MatmulDescCreate);
  VAMP_CUBLAS_LT(MatmulDescDestroy);
  VAMP_CUBLAS_LT(MatmulDescSetAttribute);
  VAMP_CUBLAS_LT(MatrixLayoutCreate);
  VAMP_CUBLAS_LT(MatrixLayoutDestroy);
  VAMP_CUBLAS_LT(MatmulPreferenceCreate);
  VAMP_CUBLAS_LT(MatmulPreferenceDestroy);
  VAMP_CUBLAS_LT(MatmulPreferenceSetAttribute);
  VAMP_CUBLAS_LT(MatmulAlgoGetHeuristic);
  VAMP_CUBLAS_LT(GetStatusString);
#undef VAMP_CUBLAS_LT
};

// Throws Error when libcublasLt.so.13 is not found, saying where it comes from.
const CublasLt& cublas_lt();

}  // namespace vamp::cuda
