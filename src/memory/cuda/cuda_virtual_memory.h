// VirtualMemory over the CUDA driver's VMM calls.
#pragma once

#include <unordered_map>

#include "memory/cuda/cuda_driver.h"
#include "memory/cuda/cuda_handles.h"
#include "memory/virtual_memory.h"

namespace vamp {

// Memory of one device, in pages of 2 MiB. A handle is the unit of mapping: each map, set_access
// and unmap costs per handle, hardly per byte (74 us together on an H200), so handles are as large
// as an expert group allows, and all are created at start.
//
// Calls don't wait for kernels that run on other memory; that nothing uses what is unmapped is for
// the caller to see to. Misuse that the driver notices is an Error here; ShadowVirtualMemory finds
// it all. A handle counts as used device memory while it is mapped nowhere.
//
// One thread, which it makes `device` current on.
class CudaVirtualMemory final : public VirtualMemory {
 public:
  // Throws Error if the device can't do this; cuda_memory_unavailable() tells before.
  explicit CudaVirtualMemory(int device);
  ~CudaVirtualMemory() override = default;

  size_t granularity() const override { return granularity_; }
  std::byte* reserve(size_t bytes) override;
  void release(std::byte* address, size_t bytes) override;
  Handle create(size_t bytes) override;
  void destroy(Handle handle) override;
  void map(std::byte* address, size_t bytes, Handle handle) override;
  void unmap(std::byte* address, size_t bytes) override;
  void set_access(std::byte* address, size_t bytes) override;
  void zero_ranges(std::span<const MemoryRange> ranges) override;

  // All handles together; the driver's own count is slow to ask for.
  size_t created_bytes() const { return created_; }

  // What the driver has at an address, to hold the shadow's table against.
  struct DriverMapping {
    Handle handle;
    bool accessible = false;
  };
  std::optional<DriverMapping> driver_mapping(std::byte* address) const;

 private:
  CUmemAllocationProp properties() const;

  int device_;
  CudaDriver driver_;
  size_t granularity_ = 0;
  size_t created_ = 0;
  std::unordered_map<uint64_t, size_t> sizes_;  // by handle
  std::optional<CudaStream> stream_;            // for zero()
};

}  // namespace vamp
