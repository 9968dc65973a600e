// Virtual addresses apart from physical memory: the few driver calls on which the moving boundary
// rests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace vamp {

// Names one piece of physical memory. 0 is none.
struct Handle {
  uint64_t value = 0;
  bool operator==(const Handle&) const = default;
  auto operator<=>(const Handle&) const = default;
};

struct MemoryRange {
  std::byte* address = nullptr;
  size_t bytes = 0;
};

// Address space and physical memory of one device, after the CUDA driver's VMM calls, which the
// CUDA backend is; HostVirtualMemory does the same with a memfd. This comment is the contract of
// both, and virtual_memory_conformance.h is its test.
//
// All sizes, and all addresses but those of zero(), are multiples of granularity().
//   reserve     address space without memory behind it: a hole. Touching a hole is a fault.
//   create      physical memory of one handle. Its bytes are undefined (on the host: zero).
//   map         a *whole* handle at an address in a reserved range, into a hole. One handle may be
//   mapped
//               at several addresses at once: all see the same bytes. Bytes outlive unmap and map.
//               The new mapping can't be touched before set_access.
//   set_access  makes mapped memory readable and writable by the device. The run may cover several
//               neighbouring mappings, but no hole.
//   unmap       turns a run of whole neighbouring mappings back into holes.
//   release     gives back a reserved range, whole, when nothing is mapped in it.
//   destroy     gives back a handle's memory, when it is mapped nowhere.
//   zero        writes zeros through accessible mappings, several ranges at once; done when it
//   returns. If
//               it throws, the ranges' bytes are undefined.
//
// A call either does all that it says or throws Error and has changed nothing, so whoever calls
// several can go back by their inverses. The memory's owner must see to it that nothing still uses
// what it unmaps. Breaking the rules above is a bug of the caller; ShadowVirtualMemory finds it.
//
// One thread at a time.
class VirtualMemory {
 public:
  virtual ~VirtualMemory() = default;

  virtual size_t granularity() const = 0;

  virtual std::byte* reserve(size_t bytes) = 0;
  virtual void release(std::byte* address, size_t bytes) = 0;

  virtual Handle create(size_t bytes) = 0;
  virtual void destroy(Handle handle) = 0;

  // `bytes` is the handle's size, as given to create().
  virtual void map(std::byte* address, size_t bytes, Handle handle) = 0;
  virtual void unmap(std::byte* address, size_t bytes) = 0;
  virtual void set_access(std::byte* address, size_t bytes) = 0;

  virtual void zero_ranges(std::span<const MemoryRange> ranges) = 0;
  void zero(std::byte* address, size_t bytes) {
    const MemoryRange range{address, bytes};
    zero_ranges({&range, 1});
  }
};

}  // namespace vamp
