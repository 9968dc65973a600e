// The driver's calls, looked up at run time: a binary that has them starts without a driver too.
#pragma once

#include <cuda.h>

#include <optional>
#include <string>

#include "base/error.h"
#include "memory/cuda/cuda_error.h"

namespace vamp {

struct CudaDriver {
  decltype(&cuGetErrorName) get_error_name;
  decltype(&cuGetErrorString) get_error_string;
  decltype(&cuDeviceGetAttribute) device_get_attribute;
  decltype(&cuMemGetAllocationGranularity) get_granularity;
  decltype(&cuMemAddressReserve) address_reserve;
  decltype(&cuMemAddressFree) address_free;
  decltype(&cuMemCreate) create;
  decltype(&cuMemRelease) release;
  decltype(&cuMemMap) map;
  decltype(&cuMemUnmap) unmap;
  decltype(&cuMemSetAccess) set_access;
  decltype(&cuMemGetAccess) get_access;
  decltype(&cuMemRetainAllocationHandle) retain_handle;

  template <typename... Args>
  void check(CUresult result, fmt::format_string<Args...> doing, Args&&... args) const {
    if (result == CUDA_SUCCESS) [[likely]]
      return;
    fail(result, fmt::format(doing, std::forward<Args>(args)...));
  }

 private:
  [[noreturn]] void fail(CUresult result, const std::string& doing) const;
};

// Throws Error if there is no driver, or one older than these calls.
CudaDriver load_cuda_driver();

// Why `device` can't be used with movable memory (no driver, no such device, a platform without
// virtual memory management, as some virtual GPUs are), or nothing. The caller can then go on with
// a static partition or on the CPU.
std::optional<std::string> cuda_memory_unavailable(int device);

}  // namespace vamp
