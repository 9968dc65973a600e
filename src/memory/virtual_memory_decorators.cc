#include "memory/virtual_memory_decorators.h"

#include <initializer_list>
#include <iterator>

#include "base/error.h"

namespace vamp {

void ShadowVirtualMemory::check_size(size_t bytes) const {
  VAMP_CHECK(bytes > 0 && bytes % granularity() == 0, "{} bytes is no multiple of the page of {}",
             bytes, granularity());
}

std::byte* ShadowVirtualMemory::reserve(size_t bytes) {
  check_size(bytes);
  std::byte* address = inner_.reserve(bytes);
  VAMP_CHECK(reinterpret_cast<uintptr_t>(address) % granularity() == 0, "reserved off a page");
  const auto next = reservations_.lower_bound(address);
  VAMP_CHECK(next == reservations_.end() || address + bytes <= next->first, "reserved twice");
  VAMP_CHECK(next == reservations_.begin() ||
                 std::prev(next)->first + std::prev(next)->second.bytes <= address,
             "reserved twice");
  reservations_.emplace(address, Reservation{bytes, reserved_++});
  return address;
}

void ShadowVirtualMemory::release(std::byte* address, size_t bytes) {
  const auto found = reservations_.find(address);
  VAMP_CHECK(found != reservations_.end() && found->second.bytes == bytes,
             "release of what is not reserved");
  const auto mapped = table_.lower_bound(address);
  VAMP_CHECK(mapped == table_.end() || mapped->first >= address + bytes, "release while mapped");
  inner_.release(address, bytes);
  reservations_.erase(found);
}

Handle ShadowVirtualMemory::create(size_t bytes) {
  check_size(bytes);
  const Handle handle = inner_.create(bytes);
  VAMP_CHECK(handle.value != 0 && !handles_.contains(handle), "handle {} twice", handle.value);
  handles_.emplace(handle, HandleInfo{bytes, created_++, 0});
  return handle;
}

void ShadowVirtualMemory::destroy(Handle handle) {
  const auto found = handles_.find(handle);
  VAMP_CHECK(found != handles_.end(), "destroy of unknown handle {}", handle.value);
  VAMP_CHECK(found->second.mappings == 0, "destroy of handle {}, mapped at {} addresses",
             handle.value, found->second.mappings);
  inner_.destroy(handle);
  handles_.erase(found);
}

std::map<std::byte*, ShadowVirtualMemory::Reservation>::const_iterator
ShadowVirtualMemory::reservation_of(const std::byte* address, size_t bytes) const {
  auto range = reservations_.upper_bound(const_cast<std::byte*>(address));
  VAMP_CHECK(range != reservations_.begin(), "{} is not reserved",
             static_cast<const void*>(address));
  --range;
  VAMP_CHECK(address + bytes <= range->first + range->second.bytes,
             "{} + {} is not within one reservation", static_cast<const void*>(address), bytes);
  return range;
}

void ShadowVirtualMemory::map(std::byte* address, size_t bytes, Handle handle) {
  check_size(bytes);
  VAMP_CHECK(reinterpret_cast<uintptr_t>(address) % granularity() == 0, "map off a page");
  reservation_of(address, bytes);
  const auto found = handles_.find(handle);
  VAMP_CHECK(found != handles_.end(), "map of unknown handle {}", handle.value);
  VAMP_CHECK(found->second.bytes == bytes, "map of {} bytes of handle {}, which has {}", bytes,
             handle.value, found->second.bytes);
  const auto next = table_.lower_bound(address);
  VAMP_CHECK(next == table_.end() || address + bytes <= next->first, "map over a mapping");
  VAMP_CHECK(
      next == table_.begin() || std::prev(next)->first + std::prev(next)->second.bytes <= address,
      "map over a mapping");
  inner_.map(address, bytes, handle);
  table_.emplace_hint(next, address, Mapping{bytes, handle, false});
  ++found->second.mappings;
}

ShadowVirtualMemory::Table::iterator ShadowVirtualMemory::check_whole_mappings(std::byte* address,
                                                                               size_t bytes,
                                                                               const char* call) {
  check_size(bytes);
  const auto first = table_.find(address);
  std::byte* reached = address;
  for (auto it = first; reached < address + bytes; ++it) {
    VAMP_CHECK(it != table_.end() && it->first == reached, "{} over a hole or a part of a mapping",
               call);
    reached += it->second.bytes;
  }
  VAMP_CHECK(reached == address + bytes, "{} of a part of a mapping", call);
  return first;
}

void ShadowVirtualMemory::unmap(std::byte* address, size_t bytes) {
  auto it = check_whole_mappings(address, bytes, "unmap");
  inner_.unmap(address, bytes);
  while (it != table_.end() && it->first < address + bytes) {
    --handles_.at(it->second.handle).mappings;
    it = table_.erase(it);
  }
}

void ShadowVirtualMemory::set_access(std::byte* address, size_t bytes) {
  auto it = check_whole_mappings(address, bytes, "set_access");
  inner_.set_access(address, bytes);
  for (; it != table_.end() && it->first < address + bytes; ++it) it->second.accessible = true;
}

void ShadowVirtualMemory::zero_ranges(std::span<const MemoryRange> ranges) {
  for (const MemoryRange& range : ranges)
    VAMP_CHECK(accessible(range.address, range.bytes), "zero where there is no access");
  inner_.zero_ranges(ranges);
}

std::optional<ShadowVirtualMemory::Mapping> ShadowVirtualMemory::at(
    const std::byte* address) const {
  auto it = table_.upper_bound(const_cast<std::byte*>(address));
  if (it == table_.begin()) return std::nullopt;
  --it;
  if (address >= it->first + it->second.bytes) return std::nullopt;
  return it->second;
}

bool ShadowVirtualMemory::accessible(const std::byte* address, size_t bytes) const {
  auto it = table_.upper_bound(const_cast<std::byte*>(address));
  if (it == table_.begin()) return false;
  --it;
  const std::byte* reached = it->first;
  for (; reached < address + bytes; ++it) {
    if (it == table_.end() || it->first != reached || !it->second.accessible) return false;
    reached += it->second.bytes;
    if (reached <= address) return false;
  }
  return true;
}

std::vector<const std::byte*> ShadowVirtualMemory::holes() const {
  std::vector<const std::byte*> holes;
  for (const auto& [begin, range] : reservations_)
    for (const std::byte* page = begin; page < begin + range.bytes; page += granularity())
      if (!at(page)) holes.push_back(page);
  return holes;
}

uint64_t ShadowVirtualMemory::hash() const {
  // A sum of FNV-1a hashes of (range, offset in it, size, handle), as ranges need not lie in the
  // same order.
  const auto fnv = [](std::initializer_list<uint64_t> values) {
    uint64_t hash = 0xcbf29ce484222325ull;
    for (const uint64_t value : values)
      for (int byte = 0; byte < 8; ++byte)
        hash = (hash ^ ((value >> (8 * byte)) & 0xff)) * 0x100000001b3ull;
    return hash;
  };
  uint64_t sum = 0;
  for (const auto& [address, mapping] : table_) {
    const auto range = reservation_of(address, mapping.bytes);
    sum += fnv({range->second.number, static_cast<uint64_t>(address - range->first), mapping.bytes,
                handles_.at(mapping.handle).number, mapping.accessible});
  }
  return sum;
}

void FailingVirtualMemory::count(const char* call) {
  ++calls_;
  if (calls_ >= first_ && calls_ < first_ + count_)
    throw Error("{} failed on purpose, the {}th call", call, calls_);
}

std::byte* FailingVirtualMemory::reserve(size_t bytes) {
  count("reserve");
  return inner_.reserve(bytes);
}

Handle FailingVirtualMemory::create(size_t bytes) {
  count("create");
  return inner_.create(bytes);
}

void FailingVirtualMemory::map(std::byte* address, size_t bytes, Handle handle) {
  count("map");
  inner_.map(address, bytes, handle);
}

void FailingVirtualMemory::unmap(std::byte* address, size_t bytes) {
  count("unmap");
  inner_.unmap(address, bytes);
}

void FailingVirtualMemory::set_access(std::byte* address, size_t bytes) {
  count("set_access");
  inner_.set_access(address, bytes);
}

void FailingVirtualMemory::zero_ranges(std::span<const MemoryRange> ranges) {
  count("zero");
  inner_.zero_ranges(ranges);
}

}  // namespace vamp
