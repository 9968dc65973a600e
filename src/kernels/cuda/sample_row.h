// The device half of Sampler: plain data in, plain data out.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace vamp::cuda {

// What bias and penalties do to one token's logit x: x += bias; x = x > 0 ? x / repetition : x *
// repetition; x -= subtract.
struct LogitChange {
  int32_t token = 0;
  float bias = 0, repetition = 1, subtract = 0;
};

struct RowParams {
  float temperature = 0;
  float top_p = 1, min_p = 0;
  int32_t top_k = 0;
  int32_t logprobs = -1;
  int32_t changes_begin = 0, changes_end = 0;  // in the batch's list
  int32_t mask = -1;                           // which of the batch's masks; -1: all tokens allowed
  double random = 0;                           // in [0, 1)
};

// Most top_logprobs of a row.
inline constexpr int kMaxLogprobs = 128;

struct RowResult {
  int32_t token = 0;
  int32_t invalid = 0;
  float logprob = 0;
  int32_t num_top = 0;
};

struct SampleBatch {
  const float* logits = nullptr;  // [rows, vocab]
  int rows = 0, vocab = 0;
  const RowParams* params = nullptr;     // [rows]
  const LogitChange* changes = nullptr;  // at most one a token within a row
  const uint32_t* masks = nullptr;       // [masks, (vocab + 31) / 32] bit t: token t is allowed
  RowResult* results = nullptr;          // [rows]
  int32_t* top_tokens = nullptr;         // [rows, kMaxLogprobs], best first
  float* top_logprobs = nullptr;
};

// Largest vocabulary that one cluster of blocks holds in its shared memory.
int sample_rows_max_vocab();

// All pointers on the device. Asynchronous, capturable.
void sample_rows(const SampleBatch& batch, cudaStream_t stream);

}  // namespace vamp::cuda
