// long_attention_* for one head size; see attention_long.h.
#pragma once

#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>

#include "kernels/cuda/attention_long.h"

namespace vamp::cuda {

using LongElement = cutlass::bfloat16_t;

// What both ways to lay keys and values out share.
template <typename Params>
Params long_attention_params(const LongAttentionArgs& args, int head_dim) {
  const auto ints = [](const int32_t* p) { return const_cast<int32_t*>(p); };
  Params params{};
  params.q_ptr = reinterpret_cast<LongElement*>(const_cast<__nv_bfloat16*>(args.q));
  params.o_ptr = reinterpret_cast<LongElement*>(args.out);
  params.qo_tile_indices = ints(args.plan.tile);
  params.qo_indptr = ints(args.plan.query_start);
  params.kv_indptr = ints(args.plan.block_start);
  params.qo_lens = ints(args.plan.query_length);
  params.kv_lens = ints(args.plan.context);
  params.head_indices = ints(args.plan.head);
  params.work_indptr = ints(args.plan.work_start);
  params.batch_indices = ints(args.plan.sequence);
  params.additional_params.sm_scale = args.scale;
  params.q_stride_n = args.q_stride;
  params.q_stride_h = params.o_stride_h = head_dim;
  params.o_stride_n = int64_t{args.num_heads} * head_dim;
  params.nnz_qo = args.tokens;
  params.num_qo_heads = args.num_heads;
  params.num_kv_heads = args.cache.layout.kv_heads;
  params.group_size = args.num_heads / args.cache.layout.kv_heads;
  params.window_left = -1;
  params.causal = true;
  return params;
}

template <int kHeadDim>
cudaError_t long_attention(const LongAttentionArgs& args, cudaStream_t stream) {
  using Params =
      flashinfer::BatchPrefillPagedParams<LongElement, LongElement, LongElement, int32_t>;
  const KvLayout& layout = args.cache.layout;
  auto params = long_attention_params<Params>(args, kHeadDim);
  params.k_ptr = static_cast<LongElement*>(args.cache.arena) + args.layer * layout.layer_stride();
  params.v_ptr = params.k_ptr + layout.v_offset();
  params.kv_indices = const_cast<int32_t*>(args.block_ids);
  params.k_stride_n = params.v_stride_n = layout.token_stride();
  params.k_stride_h = params.v_stride_h = layout.head_stride();
  params.k_page_stride = params.v_page_stride = layout.block_stride();
  params.page_size = layout.block_tokens;
  return flashinfer::BatchPrefillWithPagedKVCacheDispatched<
      kHeadDim, kHeadDim, flashinfer::MaskMode::kCausal, /*LEFT_SLIDING_WINDOW=*/false,
      /*SAME_SCHEDULE_FOR_ALL_HEADS=*/false, flashinfer::StandardAttention>(params, false, stream);
}

template <int kHeadDim>
cudaError_t dense_attention(const LongAttentionArgs& args, cudaStream_t stream) {
  using Params =
      flashinfer::BatchPrefillRaggedParams<LongElement, LongElement, LongElement, int32_t>;
  auto params = long_attention_params<Params>(args, kHeadDim);
  params.k_ptr = reinterpret_cast<LongElement*>(const_cast<__nv_bfloat16*>(args.dense.k));
  params.v_ptr = reinterpret_cast<LongElement*>(const_cast<__nv_bfloat16*>(args.dense.v));
  params.k_stride_n = params.v_stride_n = args.dense.stride;
  params.k_stride_h = params.v_stride_h = kHeadDim;
  params.nnz_kv = args.tokens;
  return flashinfer::BatchPrefillWithRaggedKVCacheDispatched<
      kHeadDim, kHeadDim, flashinfer::MaskMode::kCausal, /*LEFT_SLIDING_WINDOW=*/false,
      /*SAME_SCHEDULE_FOR_ALL_HEADS=*/false, flashinfer::StandardAttention>(params, false, stream);
}

}  // namespace vamp::cuda
