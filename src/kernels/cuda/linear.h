// Dense products of any number of rows: linear_skinny for few rows, linear_split for some, cuBLASLt
// for many.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/ops.h"

namespace vamp::cuda {

// Owns a cuBLASLt handle, its workspace and the algorithms chosen so far: one for each (matrix
// shape, kind of output, rows rounded up to a power of two), so that a new number of rows in a step
// costs no search. Used by one thread, on one stream at a time (the workspace is one).
class Linear {
 public:
  Linear();
  ~Linear();
  Linear(const Linear&) = delete;
  Linear& operator=(const Linear&) = delete;

  // Each part's out = x Wᵀ (+ bias), as Ops::linear has it: x bf16, weights bf16, outputs bf16 or
  // (kFloat) f32, sums in f32; the residual is bf16. Pointers 16-byte aligned, strides and cols
  // multiples of 8. Asynchronous, capturable.
  void run(const __nv_bfloat16* x, int64_t x_stride, int rows, std::span<const LinearPart> parts,
           cudaStream_t stream);

  // Chooses algorithms by timing cuBLASLt's first few proposals instead of trusting the first, for
  // every bucket of rows up to max_rows. Runs and waits on the device; outputs are overwritten,
  // so x and the parts' outputs must hold max_rows rows. Not under capture.
  void tune(const __nv_bfloat16* x, int64_t x_stride, int max_rows,
            std::span<const LinearPart> parts);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vamp::cuda
