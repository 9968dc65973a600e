#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack_bf16.cuh"
#include "kernels/cuda/vec.cuh"

namespace vamp::cuda {
namespace {

using bf16 = __nv_bfloat16;
constexpr int kThreads = 128;

struct Eight {
  float x[8];
};
__device__ Eight load8(const bf16* p) {
  const uint4 bits = load_bf16x8(p).bits;
  return {{bf16_low(bits.x), bf16_high(bits.x), bf16_low(bits.y), bf16_high(bits.y),
           bf16_low(bits.z), bf16_high(bits.z), bf16_low(bits.w), bf16_high(bits.w)}};
}
__device__ void store8(bf16* p, const Eight& v) {
  *reinterpret_cast<uint4*>(p) = make_uint4(pack_bf16(v.x[0], v.x[1]), pack_bf16(v.x[2], v.x[3]),
                                            pack_bf16(v.x[4], v.x[5]), pack_bf16(v.x[6], v.x[7]));
}
__device__ float sigmoid(float x) {
  return 1.0f / (1.0f + __expf(-x));
}

// Blocks [x: eights of a row, y: row].
__device__ int column() {
  return (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) * 8;
}
dim3 grid(int rows, int width) {
  return dim3((width / 8 + kThreads - 1) / kThreads, rows);
}

__global__ void __launch_bounds__(kThreads)
    embed_kernel(const bf16* table, int cols, const TokenId* ids, bf16* residual) {
  allow_next();
  wait_for_previous();
  const int c = column();
  if (c >= cols) return;
  const size_t r = blockIdx.y;
  *reinterpret_cast<uint4*>(residual + r * cols + c) =
      *reinterpret_cast<const uint4*>(table + static_cast<size_t>(ids[r]) * cols + c);
}

__global__ void __launch_bounds__(kThreads)
    silu_and_mul_kernel(const bf16* gate_up, int64_t stride, int width, bool gated, bf16* out) {
  allow_next();
  wait_for_previous();
  const int c = column();
  if (c >= width) return;
  const int64_t r = blockIdx.y;
  const bf16* row = gate_up + r * stride;
  const float scale = gated ? sigmoid(__bfloat162float(row[2 * width])) : 1.0f;
  Eight gate = load8(row + c);
  const Eight up = load8(row + width + c);
#pragma unroll
  for (int i = 0; i < 8; ++i) gate.x[i] = silu(gate.x[i]) * up.x[i] * scale;
  store8(out + r * width + c, gate);
}

__global__ void __launch_bounds__(kThreads)
    multiply_sigmoid_kernel(bf16* x, const bf16* gate, int64_t gate_stride, int width) {
  allow_next();
  wait_for_previous();
  const int c = column();
  if (c >= width) return;
  const int64_t r = blockIdx.y;
  Eight v = load8(x + r * width + c);
  const Eight g = load8(gate + r * gate_stride + c);
#pragma unroll
  for (int i = 0; i < 8; ++i) v.x[i] *= sigmoid(g.x[i]);
  store8(x + r * width + c, v);
}

__global__ void __launch_bounds__(kThreads)
    rope_angles_kernel(const float* inv_freq, int half, float factor, const int32_t* positions,
                       float* cos_sin) {
  allow_next();
  wait_for_previous();
  const size_t r = blockIdx.x;
  float* const row = cos_sin + r * 2 * half;
  for (int i = threadIdx.x; i < half; i += kThreads) {
    float sine, cosine;
    sincosf(static_cast<float>(positions[r]) * inv_freq[i], &sine, &cosine);
    row[i] = cosine * factor;
    row[half + i] = sine * factor;
  }
}

// The grid's y dimension.
constexpr int kMaxRows = 65535;
void check_shape(const char* op, int rows, int width, int64_t stride) {
  VAMP_CHECK(rows >= 0 && rows <= kMaxRows && width % 8 == 0 && stride % 8 == 0,
             "{}: {} rows of {}, stride {}", op, rows, width, stride);
}

}  // namespace

void embed(const bf16* table, int cols, const TokenId* ids, int rows, bf16* residual,
           cudaStream_t stream) {
  check_shape("embed", rows, cols, cols);
  if (rows == 0) return;
  launch_overlapped("embed", embed_kernel, grid(rows, cols), kThreads, 0, stream, table, cols, ids,
                    residual);
}

void silu_and_mul(const bf16* gate_up, int64_t stride, int rows, int width, bool gated, bf16* out,
                  cudaStream_t stream) {
  check_shape("silu_and_mul", rows, width, stride);
  if (rows == 0) return;
  launch_overlapped("silu_and_mul", silu_and_mul_kernel, grid(rows, width), kThreads, 0, stream,
                    gate_up, stride, width, gated, out);
}

void multiply_sigmoid(bf16* x, const bf16* gate, int64_t gate_stride, int rows, int width,
                      cudaStream_t stream) {
  check_shape("multiply_sigmoid", rows, width, gate_stride);
  if (rows == 0) return;
  launch_overlapped("multiply_sigmoid", multiply_sigmoid_kernel, grid(rows, width), kThreads, 0,
                    stream, x, gate, gate_stride, width);
}

void rope_angles(const float* inv_freq, int half, float factor, const int32_t* positions, int rows,
                 float* cos_sin, cudaStream_t stream) {
  if (rows == 0) return;
  launch_overlapped("rope_angles", rope_angles_kernel, rows, kThreads, 0, stream, inv_freq, half,
                    factor, positions, cos_sin);
}

}  // namespace vamp::cuda
