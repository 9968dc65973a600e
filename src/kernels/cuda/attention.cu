#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/scheduler.cuh>
#include <flashinfer/attention/variants.cuh>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_long.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device_buffer.h"

namespace vamp::cuda {
namespace {

using bf16 = __nv_bfloat16;
using Params = flashinfer::BatchPrefillPagedParams<bf16, bf16, bf16, int32_t>;
using Variant = flashinfer::DefaultAttention<false, false, false, false>;

template <int kHeadDim, int kTile>
cudaError_t dispatch(const Params& params, bf16* tmp_v, float* tmp_s, cudaStream_t stream) {
  return flashinfer::BatchPrefillWithPagedKVCacheDispatched<
      true, kTile, kHeadDim, kHeadDim, flashinfer::PosEncodingMode::kNone, false,
      flashinfer::MaskMode::kCausal, Variant, Params>(params, tmp_v, tmp_s, false, stream);
}
template <int kHeadDim>
cudaError_t dispatch_tile(int tile, const Params& params, bf16* tmp_v, float* tmp_s,
                          cudaStream_t stream) {
  if (tile == 16) return dispatch<kHeadDim, 16>(params, tmp_v, tmp_s, stream);
  if (tile == 64) return dispatch<kHeadDim, 64>(params, tmp_v, tmp_s, stream);
  if constexpr (kHeadDim < 256) {
    if (tile == 128) return dispatch<kHeadDim, 128>(params, tmp_v, tmp_s, stream);
  }
  return cudaErrorInvalidValue;
}

constexpr size_t kIntWorkspaceBytes = size_t{8} << 20;
constexpr int kPlans = 3;
constexpr int kStepsInFlight = 2;

}  // namespace

struct Attention::Impl {
  AttentionShape shape;
  int block_tokens;
  DeviceBuffer<char> floats;
  DeviceBuffer<char> ints;  // the plans of short, long and dense sequences
  char* pinned[kStepsInFlight] = {};
  cudaEvent_t copied[kStepsInFlight] = {};  // the pinned buffer may be written again
  int next = 0;
  AttentionBatch batch;
  int short_sequences = 0, short_tokens = 0;
  int dense_from = 0;  // the first sequence of those that are whole in this step
  flashinfer::PrefillPlanInfo info;
  flashinfer::PrefillPlanSM90Info long_info, dense_info;

  template <typename T>
  T* int_at(int64_t offset) const {
    return reinterpret_cast<T*>(ints.get() + offset);
  }
  void split();
  void plan_short(bool graph, cudaStream_t stream);
  void plan_long(int first, int end, bool is_dense, cudaStream_t stream);
  void run_short(const bf16* q, int64_t q_stride, const KvCache& cache, int layer, float scale,
                 bf16* out, cudaStream_t stream) const;
  void run_long(LongAttentionArgs args, bool is_dense, cudaStream_t stream) const;
};

// Leading sequences with few new tokens are short, trailing ones without a context dense.
void Attention::Impl::split() {
  const bool has_long = shape.head_dim >= 128 && batch.context_host;
  short_sequences = 0;
  while (short_sequences < batch.sequences) {
    const int32_t* start = batch.query_start_host + short_sequences;
    if (has_long && start[1] - start[0] >= kLongQuery) break;
    ++short_sequences;
  }
  short_tokens = batch.query_start_host[short_sequences];
  dense_from = batch.sequences;
  while (batch.dense && dense_from > short_sequences) {
    const int32_t* start = batch.query_start_host + dense_from - 1;
    if (start[1] - start[0] != batch.context_host[dense_from - 1]) break;
    --dense_from;
  }
}

void Attention::Impl::plan_short(bool graph, cudaStream_t stream) {
  if (short_tokens == 0) return;
  const bool decode = short_tokens == short_sequences;
  check(flashinfer::PrefillPlan<int32_t>(
            floats.get(), floats.size(), ints.get(), pinned[next], kIntWorkspaceBytes, info,
            const_cast<int32_t*>(batch.query_start_host),
            const_cast<int32_t*>(batch.block_start_host), short_tokens, short_sequences,
            shape.num_heads, shape.kv_heads, shape.head_dim, shape.head_dim, block_tokens, graph,
            sizeof(bf16), -1, -1, false, 0, decode ? 1 : 0, stream),
        "planning attention");
}

// Sequences [first, end). Dense: "pages" of one token, which lie as the queries do.
void Attention::Impl::plan_long(int first, int end, bool is_dense, cudaStream_t stream) {
  if (first == end) return;
  const auto host = [](const int32_t* p) { return const_cast<int32_t*>(p); };
  const int32_t* starts = batch.query_start_host;
  const size_t place = (is_dense ? 2 : 1) * kIntWorkspaceBytes;
  flashinfer::PrefillPlanSM90Info& plan_info = is_dense ? dense_info : long_info;
  check(flashinfer::PrefillSM90Plan<int32_t>(
            floats.get(), floats.size(), ints.get() + place, pinned[next] + place,
            kIntWorkspaceBytes, plan_info, host(starts + first),
            host((is_dense ? starts : batch.block_start_host) + first),
            host(batch.context_host + first), starts[end] - starts[first], end - first,
            shape.num_heads, shape.kv_heads, shape.head_dim, shape.head_dim,
            is_dense ? 1 : block_tokens, /*causal=*/true, /*enable_cuda_graph=*/false, sizeof(bf16),
            stream),
        "planning attention of long queries");
  VAMP_CHECK(!plan_info.same_schedule_for_all_heads, "attention: {} new tokens in one step",
             batch.tokens);
}

Attention::Attention(const AttentionShape& shape, int block_tokens, size_t workspace_bytes)
    : impl_(new Impl{shape,
                     block_tokens,
                     DeviceBuffer<char>(workspace_bytes),
                     DeviceBuffer<char>(kPlans * kIntWorkspaceBytes),
                     {},
                     {},
                     0,
                     {},
                     0,
                     0,
                     0,
                     {},
                     {},
                     {}}) {
  VAMP_CHECK(shape.head_dim == 64 || shape.head_dim == 128 || shape.head_dim == 256,
             "attention: head_dim {}", shape.head_dim);
  for (int i = 0; i < kStepsInFlight; ++i) {
    check(cudaMallocHost(&impl_->pinned[i], kPlans * kIntWorkspaceBytes),
          "pinning attention's plan");
    check(cudaEventCreateWithFlags(&impl_->copied[i], cudaEventDisableTiming), "cudaEventCreate");
  }
}

Attention::~Attention() {
  for (int i = 0; i < kStepsInFlight; ++i) {
    cudaFreeHost(impl_->pinned[i]);
    cudaEventDestroy(impl_->copied[i]);
  }
}

void Attention::plan(const AttentionBatch& batch, bool graph, cudaStream_t stream) {
  Impl& m = *impl_;
  m.batch = batch;
  if (batch.tokens == 0) return;
  check(cudaEventSynchronize(m.copied[m.next]), "waiting for an earlier plan's copy");
  m.split();
  m.plan_short(graph, stream);
  m.plan_long(m.short_sequences, m.dense_from, false, stream);
  m.plan_long(m.dense_from, batch.sequences, true, stream);
  check(cudaEventRecord(m.copied[m.next], stream), "cudaEventRecord");
  m.next = (m.next + 1) % kStepsInFlight;
}

void Attention::run(const bf16* q, int64_t q_stride, const KvCache& cache, int layer, float scale,
                    bf16* out, cudaStream_t stream, const DenseKv& dense) {
  const Impl& m = *impl_;
  const KvLayout& layout = cache.layout;
  VAMP_CHECK(layout.dtype == DType::kBf16 && layout.block_tokens == m.block_tokens &&
                 layout.kv_heads == m.shape.kv_heads && layout.head_dim == m.shape.head_dim,
             "attention: the cache's layout is another");
  VAMP_CHECK(!m.batch.dense || (dense.k && dense.v),
             "attention: planned with dense keys, run without");
  if (m.batch.tokens == 0) return;
  if (m.short_tokens > 0) m.run_short(q, q_stride, cache, layer, scale, out, stream);
  const LongAttentionArgs args{{},    q,     q_stride,          m.batch.tokens, m.shape.num_heads,
                               cache, layer, m.batch.block_ids, dense,          scale,
                               out};
  if (m.short_sequences < m.dense_from) m.run_long(args, false, stream);
  if (m.dense_from < m.batch.sequences) m.run_long(args, true, stream);
}

void Attention::Impl::run_long(LongAttentionArgs args, bool is_dense, cudaStream_t stream) const {
  const auto& i = is_dense ? dense_info : long_info;
  const auto at = [&](int64_t offset) {
    return int_at<int32_t>((is_dense ? 2 : 1) * static_cast<int64_t>(kIntWorkspaceBytes) + offset);
  };
  args.plan = {at(i.qo_tile_indices_offset), at(i.qo_indptr_offset),  at(i.kv_indptr_offset),
               at(i.qo_len_offset),          at(i.kv_len_offset),     at(i.head_indices_offset),
               at(i.batch_indices_offset),   at(i.work_indptr_offset)};
  const auto attention = shape.head_dim == 128
                             ? (is_dense ? dense_attention_128 : long_attention_128)
                             : (is_dense ? dense_attention_256 : long_attention_256);
  check(attention(args, stream), "attention of long queries");
}

void Attention::Impl::run_short(const bf16* q, int64_t q_stride, const KvCache& cache, int layer,
                                float scale, bf16* out, cudaStream_t stream) const {
  const KvLayout& layout = cache.layout;
  flashinfer::paged_kv_t<bf16, int32_t> kv;
  kv.page_size = flashinfer::uint_fastdiv(layout.block_tokens);
  kv.num_heads = layout.kv_heads;
  kv.head_dim = layout.head_dim;
  kv.batch_size = short_sequences;
  kv.stride_page = kv.v_stride_page = static_cast<uint32_t>(layout.block_stride());
  kv.stride_n = kv.v_stride_n = static_cast<uint32_t>(layout.token_stride());
  kv.stride_h = kv.v_stride_h = static_cast<uint32_t>(layout.head_stride());
  kv.k_data = static_cast<bf16*>(cache.arena) + layer * layout.layer_stride();
  kv.v_data = kv.k_data + layout.v_offset();
  kv.indices = const_cast<int32_t*>(batch.block_ids);
  kv.indptr = const_cast<int32_t*>(batch.block_start);
  kv.last_page_len = const_cast<int32_t*>(batch.last_block_tokens);

  Params params(const_cast<bf16*>(q), kv, nullptr, const_cast<int32_t*>(batch.query_start), nullptr,
                nullptr, out, nullptr, nullptr, shape.num_heads, static_cast<int32_t>(q_stride),
                shape.head_dim, -1, 0.0f, scale, 1.0f, 1e4f);
  params.request_indices = int_at<int32_t>(info.request_indices_offset);
  params.qo_tile_indices = int_at<int32_t>(info.qo_tile_indices_offset);
  params.kv_tile_indices = int_at<int32_t>(info.kv_tile_indices_offset);
  params.o_indptr = int_at<int32_t>(info.o_indptr_offset);
  params.kv_chunk_size_ptr = int_at<int32_t>(info.kv_chunk_size_ptr_offset);
  params.max_total_num_rows = static_cast<uint32_t>(info.total_num_rows);
  params.padded_batch_size = static_cast<uint32_t>(info.padded_batch_size);
  bf16* tmp_v = nullptr;
  float* tmp_s = nullptr;
  if (info.split_kv) {
    params.merge_indptr = int_at<int32_t>(info.merge_indptr_offset);
    tmp_v = reinterpret_cast<bf16*>(floats.get() + info.v_offset);
    tmp_s = reinterpret_cast<float*>(floats.get() + info.s_offset);
    if (info.enable_cuda_graph)
      params.block_valid_mask = int_at<bool>(info.block_valid_mask_offset);
  }
  if (info.enable_cuda_graph) params.total_num_rows = int_at<uint32_t>(info.total_num_rows_offset);
  const int tile = static_cast<int>(info.cta_tile_q);
  const cudaError_t status =
      shape.head_dim == 64    ? dispatch_tile<64>(tile, params, tmp_v, tmp_s, stream)
      : shape.head_dim == 128 ? dispatch_tile<128>(tile, params, tmp_v, tmp_s, stream)
                              : dispatch_tile<256>(tile, params, tmp_v, tmp_s, stream);
  check(status, "attention");
}

}  // namespace vamp::cuda
