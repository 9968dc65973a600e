// What gpu_memory_bench runs beside the copies that it measures.
#pragma once

#include <cublas_api.h>
#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/units.h"
#include "memory/cuda/cuda_handles.h"

namespace vamp {

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

inline double gb_per_s(double bytes, double micros) {
  return bytes / micros * 1e-3;
}

// Microseconds of work on a stream, median of `repeats`.
inline double time_us(cudaStream_t stream, int repeats, const std::function<void()>& work) {
  CudaEvent begin(CudaEvent::Kind::kTiming), end(CudaEvent::Kind::kTiming);
  std::vector<double> times;
  for (int i = 0; i < repeats + 2; ++i) {
    begin.record(stream);
    work();
    end.record(stream);
    check_cuda(cudaStreamSynchronize(stream), "timing");
    if (i >= 2) times.push_back(begin.micros_to(end));
  }
  return median(times);
}

__global__ void read_kernel(const uint4* data, size_t words, int passes, unsigned* sink) {
  unsigned sum = 0;
  const size_t stride = static_cast<size_t>(gridDim.x) * blockDim.x;
  for (int pass = 0; pass < passes; ++pass)
    for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < words;
         i += 4 * stride) {
      uint4 v[4] = {};
#pragma unroll
      for (int k = 0; k < 4; ++k)
        if (i + k * stride < words) v[k] = data[i + k * stride];
#pragma unroll
      for (int k = 0; k < 4; ++k) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
    }
  if (sum == 0x12345678) *sink = sum;
}

// Reads 2 GiB of its own again and again.
class HbmReader {
 public:
  // By many short blocks, as a GEMV is; or by as many as fit, which stay (persistent).
  enum class Grid : unsigned { kShortBlocks = 132 * 64, kPersistent = 132 * 4 };
  void launch(cudaStream_t stream, Grid grid = Grid::kShortBlocks, int passes = 1) {
    read_kernel<<<static_cast<unsigned>(grid), 512, 0, stream>>>(
        reinterpret_cast<const uint4*>(data_.get()), data_.size() / 16, passes, sink_.get());
    check_cuda(cudaGetLastError(), "reading HBM");
  }
  size_t bytes() const { return data_.size(); }

 private:
  DeviceArray<std::byte> data_{2 * kGiB};
  DeviceArray<unsigned> sink_{1};
};

// Keeps the device busy from a thread of its own while it lives, with kernels of `passes` x 0.47
// ms.
class BusyDevice {
 public:
  BusyDevice(HbmReader& reader, int passes)
      : thread_([this, &reader, passes] {
          CudaStream stream;
          while (!stop_) {
            for (int i = 0; i < 4; ++i)
              reader.launch(stream.get(), HbmReader::Grid::kShortBlocks, passes);
            stream.synchronize("a busy device");
          }
        }) {}
  ~BusyDevice() {
    stop_ = true;
    thread_.join();
  }

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// How much longer `work` takes while copies run beside it without a pause, and the copies' rate
// meanwhile. Alone it is timed for as long: a product heats the device down to lower clocks.
struct Beside {
  double alone_us = 0, slower_percent = 0, copy_gb_per_s = 0;
};
using Work = std::function<void(cudaStream_t)>;

inline std::vector<double> times_while(const Work& work, const std::function<bool()>& go_on) {
  CudaStream stream;
  std::vector<double> times;
  while (go_on()) {
    CudaEvent begin(CudaEvent::Kind::kTiming), end(CudaEvent::Kind::kTiming);
    begin.record(stream.get());
    work(stream.get());
    end.record(stream.get());
    stream.synchronize("timing");
    times.push_back(begin.micros_to(end));
  }
  return times;
}

inline Beside beside(const Work& copies, double bytes, const Work& work) {
  const RealClock clock;
  Beside result;
  result.alone_us = median(times_while(work, [&] { return clock.now() < 0.4 * kSecond; }));
  CudaStream stream;
  const int repeats = std::max(2, static_cast<int>(0.4 * 50e9 / bytes));
  CudaEvent begin(CudaEvent::Kind::kTiming), end(CudaEvent::Kind::kTiming);
  begin.record(stream.get());
  for (int i = 0; i < repeats; ++i) copies(stream.get());
  end.record(stream.get());
  auto times = times_while(work, [&] { return cudaEventQuery(end.get()) == cudaErrorNotReady; });
  stream.synchronize("timing");
  if (times.size() > 1) times.pop_back();  // the copies may have ended in its midst
  result.slower_percent = 100 * (median(times) / result.alone_us - 1);
  result.copy_gb_per_s = gb_per_s(bytes * repeats, begin.micros_to(end));
  return result;
}

// C = A B in bf16 by cuBLAS, if this machine has it.
class Gemm {
 public:
  static constexpr int kSize = 8192;
  Gemm() {
    for (const char* name :
         {"libcublas.so.13", "/usr/local/cuda/lib64/libcublas.so.13", "libcublas.so.12"})
      if (!library_) library_ = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library_) return;
    const auto create = find<decltype(&cublasCreate_v2)>("cublasCreate_v2");
    set_stream_ = find<decltype(&cublasSetStream_v2)>("cublasSetStream_v2");
    gemm_ = find<GemmEx>("cublasGemmEx");
    works_ = create && set_stream_ && gemm_ && create(&handle_) == CUBLAS_STATUS_SUCCESS;
    std::vector<uint16_t> values(static_cast<size_t>(kSize) * kSize);
    Random random(9);
    for (uint16_t& value : values)
      value = static_cast<uint16_t>(0x3c00 + random.below(0x800)) ^
              static_cast<uint16_t>(random.below(2) << 15);
    for (DeviceArray<uint16_t>* matrix : {&a_, &b_})
      check_cuda(
          cudaMemcpy(matrix->get(), values.data(), values.size() * 2, cudaMemcpyHostToDevice),
          "GEMM");
  }
  bool works() const { return works_; }
  void launch(cudaStream_t stream) {
    const float one = 1, zero = 0;
    set_stream_(handle_, stream);
    const auto status =
        gemm_(handle_, CUBLAS_OP_T, CUBLAS_OP_N, kSize, kSize, kSize, &one, a_.get(), CUDA_R_16BF,
              kSize, b_.get(), CUDA_R_16BF, kSize, &zero, c_.get(), CUDA_R_16BF, kSize,
              CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    if (status != CUBLAS_STATUS_SUCCESS)
      throw Error("cublasGemmEx: status {}", static_cast<int>(status));
  }

 private:
  using GemmEx = cublasStatus_t (*)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int,
                                    int, const void*, const void*, cudaDataType, int, const void*,
                                    cudaDataType, int, const void*, void*, cudaDataType, int,
                                    cublasComputeType_t, cublasGemmAlgo_t);
  template <typename F>
  F find(const char* name) {
    return reinterpret_cast<F>(dlsym(library_, name));
  }
  void* library_ = nullptr;
  decltype(&cublasSetStream_v2) set_stream_ = nullptr;
  GemmEx gemm_ = nullptr;
  cublasHandle_t handle_ = nullptr;
  bool works_ = false;
  DeviceArray<uint16_t> a_{size_t{kSize} * kSize}, b_{size_t{kSize} * kSize},
      c_{size_t{kSize} * kSize};
};

}  // namespace vamp
