// VirtualMemory with something around it: for tests, and where every call shall be checked.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "memory/virtual_memory.h"

namespace vamp {

// Keeps a page table of its own and holds every call to VirtualMemory's contract before passing it
// on; a breach is an InvariantError, and nothing reaches the device. If the call throws, the table
// stays as it was, as the contract says. Costs about a microsecond a call. One thread.
class ShadowVirtualMemory final : public VirtualMemory {
 public:
  struct Mapping {
    size_t bytes = 0;
    Handle handle;
    bool accessible = false;
    bool operator==(const Mapping&) const = default;
  };
  using Table = std::map<std::byte*, Mapping>;  // by first address

  explicit ShadowVirtualMemory(VirtualMemory& inner) : inner_(inner) {}

  size_t granularity() const override { return inner_.granularity(); }
  std::byte* reserve(size_t bytes) override;
  void release(std::byte* address, size_t bytes) override;
  Handle create(size_t bytes) override;
  void destroy(Handle handle) override;
  void map(std::byte* address, size_t bytes, Handle handle) override;
  void unmap(std::byte* address, size_t bytes) override;
  void set_access(std::byte* address, size_t bytes) override;
  void zero_ranges(std::span<const MemoryRange> ranges) override;

  const Table& table() const { return table_; }
  size_t handles() const { return handles_.size(); }
  // The mapping that covers the address, if any.
  std::optional<Mapping> at(const std::byte* address) const;
  // Whether every byte of the run is mapped and accessible.
  bool accessible(const std::byte* address, size_t bytes) const;
  // The first address of every page that is reserved and not mapped.
  std::vector<const std::byte*> holes() const;
  // A hash of all mappings, ranges and handles numbered as they were made: equal on ranks that came
  // to the same state by the same calls.
  uint64_t hash() const;

 private:
  struct Reservation {
    size_t bytes = 0;
    uint64_t number = 0;
  };
  struct HandleInfo {
    size_t bytes = 0;
    uint64_t number = 0;
    int mappings = 0;
  };
  void check_size(size_t bytes) const;
  // First mapping of a run of whole neighbouring mappings that fill [address, address + bytes).
  Table::iterator check_whole_mappings(std::byte* address, size_t bytes, const char* call);
  // The reservation that holds all of [address, address + bytes), by its first address.
  std::map<std::byte*, Reservation>::const_iterator reservation_of(const std::byte* address,
                                                                   size_t bytes) const;

  VirtualMemory& inner_;
  uint64_t reserved_ = 0, created_ = 0;  // so far
  std::map<std::byte*, Reservation> reservations_;
  std::map<Handle, HandleInfo> handles_;
  Table table_;
};

// Throws Error instead of making the k-th call, counted from arm(). release and destroy never fail:
// they run in destructors.
class FailingVirtualMemory final : public VirtualMemory {
 public:
  explicit FailingVirtualMemory(VirtualMemory& inner) : inner_(inner) {}

  // The `first`-th call from now (1: the next) fails, and so do those after it: `count` in all.
  void arm(int first, int count = 1) {
    calls_ = 0;
    first_ = first;
    count_ = count;
  }
  void disarm() { arm(0, 0); }
  int calls() const { return calls_; }  // since arm()

  size_t granularity() const override { return inner_.granularity(); }
  std::byte* reserve(size_t bytes) override;
  void release(std::byte* address, size_t bytes) override { inner_.release(address, bytes); }
  Handle create(size_t bytes) override;
  void destroy(Handle handle) override { inner_.destroy(handle); }
  void map(std::byte* address, size_t bytes, Handle handle) override;
  void unmap(std::byte* address, size_t bytes) override;
  void set_access(std::byte* address, size_t bytes) override;
  void zero_ranges(std::span<const MemoryRange> ranges) override;

 private:
  void count(const char* call);

  VirtualMemory& inner_;
  int calls_ = 0;
  int first_ = 0;
  int count_ = 0;
};

}  // namespace vamp
