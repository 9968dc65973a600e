#include "memory/cuda/cuda_virtual_memory.h"

#include "base/units.h"

namespace vamp {
namespace {

CUdeviceptr pointer(const std::byte* address) {
  return reinterpret_cast<CUdeviceptr>(address);
}

int make_current(int device) {
  if (const auto why = cuda_memory_unavailable(device)) throw Error("{}", *why);
  check_cuda(cudaSetDevice(device), "making the device current");
  check_cuda(cudaFree(nullptr), "making the device's context");
  return device;
}

}  // namespace

CudaVirtualMemory::CudaVirtualMemory(int device)
    : device_(make_current(device)), driver_(load_cuda_driver()) {
  const CUmemAllocationProp memory = properties();
  driver_.check(
      driver_.get_granularity(&granularity_, &memory, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
      "asking for the page size");
  stream_.emplace(CudaStream::Priority::kHigh);
}

CUmemAllocationProp CudaVirtualMemory::properties() const {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
  return properties;
}

std::byte* CudaVirtualMemory::reserve(size_t bytes) {
  CUdeviceptr address = 0;
  driver_.check(
      driver_.address_reserve(&address, bytes, granularity_, 0, 0),
      "reserving {} of addresses on device {} (WSL, virtual GPUs and some MIG set-ups refuse "
      "large ones)",
      format_bytes(bytes), device_);
  return reinterpret_cast<std::byte*>(address);
}

void CudaVirtualMemory::release(std::byte* address, size_t bytes) {
  driver_.check(driver_.address_free(pointer(address), bytes), "releasing addresses of {}",
                format_bytes(bytes));
}

Handle CudaVirtualMemory::create(size_t bytes) {
  const CUmemAllocationProp memory = properties();
  CUmemGenericAllocationHandle handle = 0;
  driver_.check(driver_.create(&handle, bytes, &memory, 0),
                "creating {} on device {}, where {} were created before", format_bytes(bytes),
                device_, format_bytes(created_));
  VAMP_CHECK(handle != 0);
  created_ += bytes;
  sizes_.emplace(handle, bytes);
  return {handle};
}

void CudaVirtualMemory::destroy(Handle handle) {
  const auto found = sizes_.find(handle.value);
  VAMP_CHECK(found != sizes_.end(), "handle {} does not exist", handle.value);
  driver_.check(driver_.release(handle.value), "destroying a handle of {}",
                format_bytes(found->second));
  created_ -= found->second;
  sizes_.erase(found);
}

void CudaVirtualMemory::map(std::byte* address, size_t bytes, Handle handle) {
  driver_.check(driver_.map(pointer(address), bytes, 0, handle.value, 0), "mapping {}",
                format_bytes(bytes));
}

void CudaVirtualMemory::unmap(std::byte* address, size_t bytes) {
  driver_.check(driver_.unmap(pointer(address), bytes), "unmapping {}", format_bytes(bytes));
}

void CudaVirtualMemory::set_access(std::byte* address, size_t bytes) {
  CUmemAccessDesc access{};
  access.location = {CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  driver_.check(driver_.set_access(pointer(address), bytes, &access, 1), "setting access to {}",
                format_bytes(bytes));
}

void CudaVirtualMemory::zero_ranges(std::span<const MemoryRange> ranges) {
  for (const MemoryRange& range : ranges)
    check_cuda(cudaMemsetAsync(range.address, 0, range.bytes, stream_->get()), "zeroing KV memory");
  stream_->synchronize("zeroing KV memory");
}

std::optional<CudaVirtualMemory::DriverMapping> CudaVirtualMemory::driver_mapping(
    std::byte* address) const {
  CUmemGenericAllocationHandle handle = 0;
  if (driver_.retain_handle(&handle, address) != CUDA_SUCCESS) return std::nullopt;
  driver_.check(driver_.release(handle), "giving a retained handle back");
  unsigned long long access = 0;
  const CUmemLocation location{CU_MEM_LOCATION_TYPE_DEVICE, {device_}};
  driver_.check(driver_.get_access(&access, &location, pointer(address)), "asking for the access");
  return DriverMapping{{handle}, access == CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
}

}  // namespace vamp
