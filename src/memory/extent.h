// Who holds the physical memory.
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "memory/virtual_memory.h"

namespace vamp {

enum class Holder { kExpertStore, kKvArena, kStagingBank, kFree };
inline constexpr int kNumHolders = 4;
const char* holder_name(Holder holder);

// Bytes by holder. They always sum to what was created (checked at every change). It must outlive
// its extents. One thread.
class ExtentLedger {
 public:
  size_t held(Holder holder) const { return held_[static_cast<size_t>(holder)]; }
  size_t created() const { return created_; }

 private:
  friend class Extent;
  void create(size_t bytes);
  void destroy(Holder from, size_t bytes);
  void hand_over(Holder from, Holder to, size_t bytes);
  void check() const;

  std::array<size_t, kNumHolders> held_{};
  size_t created_ = 0;
};

// Owns one physical handle, so it has exactly one holder: the object it lies in. It knows nothing
// of where it is mapped; whoever holds it does, and unmaps it before the end. A frame is an extent
// of group_bytes: the memory of one expert group or of one KV pool slot. The boundary moves frames.
class Extent {
 public:
  Extent() = default;
  // Creates the handle; throws Error if the device has no such memory left. Held by kFree.
  Extent(VirtualMemory& memory, ExtentLedger& ledger, size_t bytes);
  Extent(Extent&& other) noexcept { *this = std::move(other); }
  Extent& operator=(Extent&& other) noexcept;
  ~Extent();

  explicit operator bool() const { return memory_ != nullptr; }
  Handle handle() const { return handle_; }
  size_t bytes() const { return bytes_; }
  Holder holder() const { return holder_; }
  void hand_to(Holder holder);

 private:
  VirtualMemory* memory_ = nullptr;
  ExtentLedger* ledger_ = nullptr;
  Handle handle_;
  size_t bytes_ = 0;
  Holder holder_ = Holder::kFree;
};

}  // namespace vamp
