// Small operations between a layer's products. Activations are bf16, arithmetic f32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ops.h"
#include "kernels/rope.h"

namespace vamp::cuda {

// All asynchronous and capturable; widths and strides multiples of 8, pointers 16-byte aligned.

// residual[r] = table[ids[r]]: table [vocab, cols], residual [rows, cols]; ids on the device.
void embed(const __nv_bfloat16* table, int cols, const TokenId* ids, int rows,
           __nv_bfloat16* residual, cudaStream_t stream);

// out[r] = silu(gate_up[r, :width]) · gate_up[r, width : 2 width], `stride` elements between rows
// of gate_up; with `gated` times sigmoid(gate_up[r, 2 width]), a shared expert's own gate. out
// [rows, width], dense.
void silu_and_mul(const __nv_bfloat16* gate_up, int64_t stride, int rows, int width, bool gated,
                  __nv_bfloat16* out, cudaStream_t stream);

// x[r] *= sigmoid(gate[r]), elementwise: x [rows, width] dense, gate_stride elements between rows
// of gate.
void multiply_sigmoid(__nv_bfloat16* x, const __nv_bfloat16* gate, int64_t gate_stride, int rows,
                      int width, cudaStream_t stream);

// cos_sin[r] = cosines then sines of positions[r]'s angles, times `factor`: f32 [rows, 2, half];
// inv_freq [half] and positions on the device.
void rope_angles(const float* inv_freq, int half, float factor, const int32_t* positions, int rows,
                 float* cos_sin, cudaStream_t stream);

}  // namespace vamp::cuda
