// cuBLASLt's functions, looked up when first needed: the library is large, and a program that has
// no GPU to use must start without it.
#pragma once

#include <cublasLt.h>

// Those that are used, X(name) for each without its prefix.
#define VAMP_CUBLAS_LT_FUNCTIONS(X) \
  X(Create)                         \
  X(Destroy)                        \
  X(Matmul)                         \
  X(MatmulDescCreate)               \
  X(MatmulDescDestroy)              \
  X(MatmulDescSetAttribute)         \
  X(MatrixLayoutCreate)             \
  X(MatrixLayoutDestroy)            \
  X(MatmulPreferenceCreate)         \
  X(MatmulPreferenceDestroy)        \
  X(MatmulPreferenceSetAttribute)   \
  X(MatmulAlgoGetHeuristic)         \
  X(GetStatusString)

namespace vamp::cuda {

struct CublasLt {
#define VAMP_CUBLAS_LT(name) decltype(&::cublasLt##name) name = nullptr;
  VAMP_CUBLAS_LT_FUNCTIONS(VAMP_CUBLAS_LT)
#undef VAMP_CUBLAS_LT
};

// Throws Error when libcublasLt.so.13 is not found, saying where it comes from.
const CublasLt& cublas_lt();

}  // namespace vamp::cuda
