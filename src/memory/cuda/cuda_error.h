// Every CUDA call's return code, turned into an Error that says what was being done.
#pragma once

#include <cuda_runtime_api.h>

#include "base/error.h"

namespace vamp {

// Calls also return what went wrong before them: after such an error nothing on the device is
// right.
inline bool is_sticky(int code) {
  return code == cudaErrorIllegalAddress || code == cudaErrorLaunchFailure ||
         code == cudaErrorLaunchTimeout || code == cudaErrorIllegalInstruction ||
         code == cudaErrorMisalignedAddress || code == cudaErrorInvalidAddressSpace ||
         code == cudaErrorHardwareStackError || code == cudaErrorAssert ||
         code == cudaErrorECCUncorrectable || code == cudaErrorExternalDevice;
}
inline const char* sticky_note(int code) {
  return is_sticky(code) ? "; an earlier kernel or copy failed, the engine must be restarted" : "";
}

inline void check_cuda(cudaError_t status, const char* doing) {
  if (status != cudaSuccess) [[unlikely]]
    throw Error("CUDA: {} failed: {} ({}){}", doing, cudaGetErrorString(status),
                cudaGetErrorName(status), sticky_note(status));
}

}  // namespace vamp
