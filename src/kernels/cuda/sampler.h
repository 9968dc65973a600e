// From logits on the device to tokens: the CPU sampler's definition (SampleParams), the same
// random numbers, and masks of allowed tokens.
//
// How close to the CPU: greedy tokens, top-k cuts and the order of ties are the same. A drawn token
// differs only when the random number falls within rounding (some 1e-7, exp's last bit) of the
// border between two tokens; likewise what top-p and min-p keep.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>

#include "kernels/ops.h"

namespace vamp::cuda {

class Sampler {
 public:
  Sampler(int max_rows, int vocab);
  ~Sampler();
  Sampler(const Sampler&) = delete;
  Sampler& operator=(const Sampler&) = delete;

  // Enqueues the work for `rows` = params.size() rows of logits (f32 [rows, vocab] on the device,
  // left as they are). masks is empty or has one entry a row: null, or host bits of which bit t
  // says that token t is allowed, (vocab + 31) / 32 words. Everything on the host is read before
  // this returns. top_logprobs are cut at 128.
  void launch(const float* logits, std::span<const SampleParams> params,
              std::span<const uint32_t* const> masks, cudaStream_t stream);

  // The last launch's samples; waits for it. out has as many entries as params had.
  void results(std::span<Sample> out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace vamp::cuda
