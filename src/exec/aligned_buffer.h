// Uninitialised memory, aligned for vector loads and huge pages.
#pragma once

#include <cstddef>
#include <utility>

namespace vamp {

// Owns anonymous memory of the process, taken from the system page by page as it is touched. Where
// the kernel offers transparent huge pages they are asked for: weights are read end to end each
// step, and with 4-KiB pages address translation costs a tenth of that.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  explicit AlignedBuffer(size_t bytes);  // throws Error when the system refuses
  AlignedBuffer(AlignedBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~AlignedBuffer();

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace vamp
