// Scratch memory of an operation: grows, is reused, is never cleared. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace vamp::cpu {

class Buffer {
 public:
  // At least `bytes`, aligned to a cache line. What was in it before may be lost.
  void* get(size_t bytes) {
    if (bytes > bytes_) {
      bytes_ = (bytes + bytes / 4 + 63) / 64 * 64;
      memory_.reset();
      memory_.reset(static_cast<std::byte*>(::operator new(bytes_, kAlignment)));
    }
    return memory_.get();
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, kAlignment); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  size_t bytes_ = 0;
};

}  // namespace vamp::cpu
