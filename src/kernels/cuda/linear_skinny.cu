#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/linear_skinny.h"
#include "kernels/cuda/skinny_gemm.cuh"

namespace vamp::cuda {

int skinny::grid_size(int tiles) {
  int device = 0, sms = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), "device attributes");
  return std::max(1, std::min(tiles, sms * kBlocksPerSm));
}

namespace {

constexpr int kRowTiles = 1;  // fine grains: matrices here may have few rows
using Shared = skinny::Shared<kRowTiles>;
using Partial = float[skinny::kWarps][skinny::kTokens][Shared::kRows];

template <typename Out>
struct LinearTiles {
  const __nv_bfloat16 *x, *w, *bias;
  Out* y;
  int T, N, K;
  bool accumulate;

  struct Cursor {
    bool started = false;
    float old = 0;
  };
  __device__ const void* any() const { return w; }
  __device__ const __nv_bfloat16* row(Cursor&, int tile, int r) const {
    const int n = tile * Shared::kRows + r;
    return n < N ? w + static_cast<size_t>(n) * K : nullptr;
  }
  __device__ bool tokens(Cursor& cursor, int, int group, const __nv_bfloat16*& x0,
                         const __nv_bfloat16*& x1) const {
    if (cursor.started) return false;
    cursor.started = true;
    x0 = group < T ? x + static_cast<size_t>(group) * K : nullptr;
    x1 = group + 8 < T ? x + static_cast<size_t>(group + 8) * K : nullptr;
    return true;
  }
  // This thread's output of a tile, or null.
  __device__ Out* output(int tile) const {
    const int t = threadIdx.x / Shared::kRows,
              n = tile * Shared::kRows + threadIdx.x % Shared::kRows;
    return t < T && n < N ? y + static_cast<size_t>(t) * N + n : nullptr;
  }
  __device__ void begin(Cursor& cursor, int tile) const {
    const Out* const out = accumulate ? output(tile) : nullptr;
    cursor.old = out ? static_cast<float>(*out) : 0.0f;
  }
  __device__ void finish(const Cursor& cursor, int tile, const Partial& partial) const {
    Out* const out = output(tile);
    if (!out) return;
    const int t = threadIdx.x / Shared::kRows, r = threadIdx.x % Shared::kRows;
    float sum = skinny::total(partial, t, r);
    if (bias) sum += __bfloat162float(bias[tile * Shared::kRows + r]);
    *out = static_cast<Out>(sum + cursor.old);
  }
};

template <int kHalves, int kSteps, typename Out>
__global__ void __launch_bounds__(skinny::kThreads, skinny::kBlocksPerSm)
    linear_kernel(LinearTiles<Out> tiles, int num_tiles) {
  extern __shared__ __align__(16) char memory[];
  allow_next();
  skinny::run<kRowTiles, kHalves, kSteps, /*kWaitAfterFill=*/true>(
      tiles, skinny::first_tile(num_tiles, blockIdx.x),
      skinny::first_tile(num_tiles, blockIdx.x + 1), tiles.K, *reinterpret_cast<Shared*>(memory));
}

template <typename Out>
void launch(const LinearTiles<Out>& tiles, cudaStream_t stream) {
  VAMP_CHECK(tiles.T >= 1 && tiles.T <= kSkinnyMaxRows && tiles.K % 8 == 0,
             "linear_skinny: T={} N={} K={}", tiles.T, tiles.N, tiles.K);
  const int num_tiles = (tiles.N + Shared::kRows - 1) / Shared::kRows;
  skinny::with_shape(tiles.T, tiles.K, [&](auto halves, auto steps) {
    const auto kernel = linear_kernel<halves.value, steps.value, Out>;
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, sizeof(Shared)),
          "linear_skinny's shared memory");
    launch_overlapped("linear_skinny", kernel, skinny::grid_size(num_tiles), skinny::kThreads,
                      sizeof(Shared), stream, tiles, num_tiles);
  });
}

}  // namespace

void linear_skinny(const __nv_bfloat16* x, const __nv_bfloat16* w, const __nv_bfloat16* bias,
                   __nv_bfloat16* y, int T, int N, int K, bool accumulate, cudaStream_t stream) {
  launch(LinearTiles<__nv_bfloat16>{x, w, bias, y, T, N, K, accumulate}, stream);
}

void linear_skinny_f32(const __nv_bfloat16* x, const __nv_bfloat16* w, float* y, int T, int N,
                       int K, cudaStream_t stream) {
  launch(LinearTiles<float>{x, w, nullptr, y, T, N, K, false}, stream);
}

}  // namespace vamp::cuda
