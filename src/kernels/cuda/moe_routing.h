// The router: which experts each token takes, and the tokens of each expert.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/ops.h"

namespace vamp::cuda {

// An expert and up to kRoutingWorkTokens of its pairs: pairs[first ... first + count).
struct WorkItem {
  int32_t expert, first, count;
};
inline constexpr int kRoutingWorkTokens = 16;

// Device arrays that route() fills: the backend-neutral lists (slots of a token by falling weight),
// and the work cut to size, so that a launch's blocks need not look for it.
struct Routing : MoeRouting {
  WorkItem* work = nullptr;           // [max_work_items()], by expert
  int32_t* num_work = nullptr;        // [1]
  int32_t* work_start = nullptr;      // [E + 1] each expert's first work item, or null
  uint32_t* expert_counts = nullptr;  // [E] running totals over steps, or null
  // [moe_progress_size(E)] of moe_grouped_experts, which finds and leaves zeros; null without it.
  int32_t* progress = nullptr;
};

// A part of a layer's experts, for products that run while the others are still being staged: those
// below *first, or those from it on; all where it is null. Needs Routing::work_start.
struct ExpertPart {
  const int32_t* first = nullptr;  // on the device
  bool from = false;
};

// Most work items that `tokens` tokens can give.
inline int max_work_items(int tokens, const MoeShape& shape) {
  const int pairs = tokens * shape.top_k, full = pairs / kRoutingWorkTokens;
  return full + (pairs < shape.experts ? pairs : shape.experts);
}

// Most tokens that one call takes, and most experts.
inline constexpr int kRoutingMaxTokens = 16384;
inline constexpr int kRoutingMaxExperts = 1024;

// softmax over the E logits of each token in f32, the top_k largest (ties: the lower expert), their
// probabilities, divided by their sum when `renormalise`.
//   logits [T, E] f32; top_k <= 16. Asynchronous, capturable; T may be 0.
// `shared`: expert 0 is a shared one, which every token takes in its last slot, weighted by the
// sigmoid of its logit; the softmax is over the others, of which top_k - 1 are chosen.
void route(const float* logits, const Routing& out, int T, int E, int top_k, bool renormalise,
           cudaStream_t stream, bool shared = false);

}  // namespace vamp::cuda
