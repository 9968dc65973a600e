#include "memory/cuda/cuda_driver.h"

namespace vamp {
namespace {

template <typename Function>
void look_up(const char* name, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check_cuda(
      cudaGetDriverEntryPointByVersion(name, &found, CUDART_VERSION, cudaEnableDefault, &result),
      "looking up the driver's calls");
  if (result != cudaDriverEntryPointSuccess || !found)
    throw Error("CUDA: the driver has no {}; it is older than CUDA {}.{}: update it", name,
                CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  function = reinterpret_cast<Function>(found);
}

}  // namespace

void CudaDriver::fail(CUresult result, const std::string& doing) const {
  const char *name = "unknown error", *text = "";
  get_error_name(result, &name);
  get_error_string(result, &text);
  throw Error("CUDA: {} failed: {} ({}){}", doing, text, name, sticky_note(result));
}

CudaDriver load_cuda_driver() {
  CudaDriver driver{};
  look_up("cuGetErrorName", driver.get_error_name);
  look_up("cuGetErrorString", driver.get_error_string);
  look_up("cuDeviceGetAttribute", driver.device_get_attribute);
  look_up("cuMemGetAllocationGranularity", driver.get_granularity);
  look_up("cuMemAddressReserve", driver.address_reserve);
  look_up("cuMemAddressFree", driver.address_free);
  look_up("cuMemCreate", driver.create);
  look_up("cuMemRelease", driver.release);
  look_up("cuMemMap", driver.map);
  look_up("cuMemUnmap", driver.unmap);
  look_up("cuMemSetAccess", driver.set_access);
  look_up("cuMemGetAccess", driver.get_access);
  look_up("cuMemRetainAllocationHandle", driver.retain_handle);
  return driver;
}

std::optional<std::string> cuda_memory_unavailable(int device) {
  int devices = 0;
  const cudaError_t status = cudaGetDeviceCount(&devices);
  if (status != cudaSuccess) {
    cudaGetLastError();  // the runtime keeps it otherwise
    return fmt::format("no CUDA device: {}", cudaGetErrorString(status));
  }
  if (device < 0 || device >= devices)
    return fmt::format("no CUDA device {}: there are {}", device, devices);
  try {
    const CudaDriver driver = load_cuda_driver();
    int supported = 0;
    driver.check(driver.device_get_attribute(
                     &supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, device),
                 "asking device {} for its attributes", device);
    if (!supported)
      return fmt::format("CUDA device {} has no virtual memory management on this platform",
                         device);
  } catch (const Error& error) {
    return error.what();
  }
  return std::nullopt;
}

}  // namespace vamp
