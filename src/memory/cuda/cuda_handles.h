// Streams, events and pinned memory with an owner each.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>

#include "memory/cuda/cuda_error.h"

namespace vamp {

class CudaStream {
 public:
  enum class Priority { kNormal, kHigh };  // high: its kernels are placed before others that wait
  explicit CudaStream(Priority priority = Priority::kNormal) {
    int least = 0, greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for stream priorities");
    check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking,
                                            priority == Priority::kHigh ? greatest : least),
               "a new stream");
  }
  ~CudaStream() { cudaStreamDestroy(stream_); }
  CudaStream(const CudaStream&) = delete;
  CudaStream& operator=(const CudaStream&) = delete;
  cudaStream_t get() const { return stream_; }
  void synchronize(const char* doing) const { check_cuda(cudaStreamSynchronize(stream_), doing); }

 private:
  cudaStream_t stream_ = nullptr;
};

class CudaEvent {
 public:
  enum class Kind { kOrder, kTiming };
  explicit CudaEvent(Kind kind = Kind::kOrder) {
    const unsigned flags = kind == Kind::kOrder ? cudaEventDisableTiming : cudaEventDefault;
    check_cuda(cudaEventCreateWithFlags(&event_, flags), "a new event");
  }
  CudaEvent(CudaEvent&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  ~CudaEvent() {
    if (event_) cudaEventDestroy(event_);
  }
  cudaEvent_t get() const { return event_; }
  void record(cudaStream_t stream) const {
    check_cuda(cudaEventRecord(event_, stream), "record of an event");
  }
  void order(cudaStream_t stream) const {  // what follows on `stream` waits for it
    check_cuda(cudaStreamWaitEvent(stream, event_, 0), "wait for an event");
  }
  // From this event to `end`, microseconds; both must have passed.
  double micros_to(const CudaEvent& end) const {
    float ms = 0;
    check_cuda(cudaEventElapsedTime(&ms, event_, end.event_), "time between events");
    return static_cast<double>(ms) * 1e3;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

// Page-locked host memory, which the device reads and writes at the same address.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  explicit PinnedBuffer(size_t bytes) {
    void* data = nullptr;
    if (bytes > 0)
      check_cuda(cudaHostAlloc(&data, bytes, cudaHostAllocPortable), "pinning host memory");
    data_ = static_cast<std::byte*>(data);
  }
  PinnedBuffer(PinnedBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  ~PinnedBuffer() {
    if (data_) cudaFreeHost(data_);
  }
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
};

// Plain device memory for small tables.
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    void* data = nullptr;
    check_cuda(cudaMalloc(&data, count * sizeof(T)), "device memory for a table");
    data_ = static_cast<T*>(data);
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }
  T* get() const { return data_; }
  size_t size() const { return count_; }

 private:
  T* data_ = nullptr;
  size_t count_;
};

}  // namespace vamp
