#define FLAT_SM90A_ENABLED
#include <cute/tensor.hpp>
// clang-format off: its headers need what these two define
#include <flashinfer/flat/common.hpp>
#include <flashinfer/flat/hopper/device/device_universal.hpp>
#include <flashinfer/flat/hopper/kernel/flat_kernel_builder_delta_rule.hpp>
// clang-format on

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/gated_delta_chunked.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack_bf16.cuh"
#include "kernels/cuda/vec.cuh"

namespace vamp::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kDim = 128, kThreads = 256;

// What lies in the scratch memory, for FlashInfer's kernel.
struct Scratch {
  bf16* qk;              // [tokens, 2, key_heads, kDim] normalised
  float *decay, *beta;   // [tokens, value_heads]
  float* states;         // [sequences, value_heads, kDim, kDim]
  int64_t* query_start;  // [sequences + 1]
  char* workspace;
  size_t bytes;
};
constexpr size_t kWorkspaceBytes = 256 * 128;  // 128 a multiprocessor

Scratch place(void* memory, int tokens, int sequences, const GatedDeltaShape& shape) {
  size_t at = 0;
  const auto take = [&]<typename T>(T*& out, size_t count) {
    out = reinterpret_cast<T*>(static_cast<char*>(memory) + at);
    at = (at + count * sizeof(T) + 255) / 256 * 256;
  };
  const auto T = static_cast<size_t>(tokens), S = static_cast<size_t>(sequences),
             heads = static_cast<size_t>(shape.value_heads);
  Scratch s{};
  take(s.qk, T * 2 * static_cast<size_t>(shape.key_heads) * kDim);
  take(s.decay, T * heads);
  take(s.beta, T * heads);
  take(s.states, S * static_cast<size_t>(shape.state_size()));
  take(s.query_start, S + 1);
  take(s.workspace, kWorkspaceBytes);
  s.bytes = at;
  return s;
}

// q and k normalised, a warp a row of a head; the gates, a thread each.
__global__ void __launch_bounds__(kThreads)
    prepare_kernel(const bf16* convolved, const bf16* ba, GatedDeltaBatch batch,
                   GatedDeltaShape shape, GatedDeltaWeights weights, Scratch scratch) {
  allow_next();
  wait_for_previous();
  const int t = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int rows = 2 * shape.key_heads;
  for (int r = warp; r < rows; r += kThreads / 32) {
    const bf16* from = convolved + static_cast<int64_t>(t) * shape.channels() + r * kDim + lane * 4;
    const uint2 bits = *reinterpret_cast<const uint2*>(from);
    const float x[4] = {bf16_low(bits.x), bf16_high(bits.x), bf16_low(bits.y), bf16_high(bits.y)};
    const float squares = warp_sum((x[0] * x[0] + x[1] * x[1]) + (x[2] * x[2] + x[3] * x[3]));
    const float scale = rsqrtf(squares + 1e-6f);
    *reinterpret_cast<uint2*>(scratch.qk + (static_cast<int64_t>(t) * rows + r) * kDim + lane * 4) =
        make_uint2(pack_bf16(x[0] * scale, x[1] * scale), pack_bf16(x[2] * scale, x[3] * scale));
  }
  for (int head = threadIdx.x; head < shape.value_heads; head += kThreads) {
    const bf16* gates = ba + t * shape.ba_row();
    const float a = __bfloat162float(gates[shape.a_column(head)]) + weights.dt_bias[head];
    const float softplus = a > 20 ? a : log1pf(expf(a));
    const int64_t at = static_cast<int64_t>(t) * shape.value_heads + head;
    scratch.decay[at] = expf(-expf(weights.a_log[head]) * softplus);
    scratch.beta[at] = 1 / (1 + expf(-__bfloat162float(gates[shape.b_column(head)])));
  }
  if (t == 0) {
    for (int s = threadIdx.x; s <= batch.sequences; s += kThreads)
      scratch.query_start[s] = batch.query_start[s];
  }
}

// States from their slots into one piece, or back.
template <bool kGather>
__global__ void __launch_bounds__(kThreads)
    move_states_kernel(GatedDeltaBatch batch, int64_t size, float* states) {
  allow_next();
  wait_for_previous();
  const int s = blockIdx.y;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * 4;
  if (i >= size) return;
  auto* dense = reinterpret_cast<float4*>(states + s * size + i);
  auto* slot = reinterpret_cast<float4*>(batch.states + batch.slots[s] * batch.state_stride + i);
  if constexpr (kGather)
    *dense = batch.starts[s] ? float4{} : *slot;
  else
    *slot = *dense;
}

template <flat::kernel::Tag kTag>
using Yes = flat::kernel::Option<kTag, cute::true_type>;
using Tag = flat::kernel::Tag;
using Stride = cute::tuple<int64_t, cute::_1, int32_t>;  // of tokens, dims, heads
using Kernel = flat::kernel::FlatBuilderDeltaRule<
    cutlass::bfloat16_t, float, float, cute::Shape<cute::_64, cute::_64, cute::_128>, Stride,
    Stride, Stride, Stride, cutlass::gemm::KernelTmaWarpSpecializedCooperative,
    std::tuple<Yes<Tag::kIsDeltaRule>, Yes<Tag::kIsGVA>, Yes<Tag::kNeedsBeta>,
               Yes<Tag::kNeedsAlpha>, Yes<Tag::kInitStateFromInput>,
               Yes<Tag::kEnableCheckpointing>>>::Kernel;
using Operation = cutlass::device::Universal<Kernel>;

void launch_flat(const bf16* v, const GatedDeltaBatch& batch, const GatedDeltaShape& shape,
                 const Scratch& scratch, const GatedDeltaCheckpoints& checkpoints, bf16* o,
                 cudaStream_t stream) {
  using Element = cutlass::bfloat16_t;
  const auto element = [](const bf16* p) {
    return reinterpret_cast<Element*>(const_cast<bf16*>(p));
  };
  const int key_heads = shape.key_heads, heads = shape.value_heads;
  const Stride qk_stride{2 * key_heads * kDim, {}, kDim}, v_stride{shape.channels(), {}, kDim},
      o_stride{heads * kDim, {}, kDim};
  cutlass::KernelHardwareInfo hardware;
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&hardware.sm_count, cudaDevAttrMultiProcessorCount, device),
        "device attributes");
  typename Operation::Arguments arguments{};
  auto& problem = arguments.problem_size;
  problem.cu_seqlens = scratch.query_start;
  problem.total_seqlen = batch.tokens;
  problem.num_seqs = batch.sequences;
  problem.num_q_heads = problem.num_k_heads = key_heads;
  problem.num_v_heads = problem.num_o_heads = problem.num_sab_heads = heads;
  problem.head_size = kDim;
  auto& loop = arguments.mainloop;
  loop.ptr_Q = element(scratch.qk);
  loop.ptr_K = element(scratch.qk + key_heads * kDim);
  loop.ptr_V = element(v);
  loop.ptr_O = element(o);
  loop.dQ = loop.dK = qk_stride;
  loop.dV = v_stride;
  loop.dO = o_stride;
  loop.ptr_output_state = scratch.states;
  loop.ptr_input_state = scratch.states;
  loop.scale = 1 / std::sqrt(static_cast<float>(kDim));
  loop.alpha_ptr = scratch.decay;
  loop.beta_ptr = scratch.beta;
  loop.alpha_stride = {heads, 1};
  loop.beta_stride = {heads, 1};
  loop.ptr_state_checkpoints = checkpoints.states;
  loop.checkpoint_cu_starts = checkpoints.start;
  // Its count of pieces is divided by this: without checkpoints, by more than there can be.
  loop.checkpoint_every_n_tokens = checkpoints.every ? checkpoints.every : 1 << 30;
  arguments.hw_info = hardware;
  Operation operation;
  VAMP_CHECK(operation.can_implement(arguments) == cutlass::Status::kSuccess &&
                 operation.run(arguments, scratch.workspace, stream) == cutlass::Status::kSuccess,
             "gated_delta_rule_chunked: {} sequences, {} tokens: the kernel refused or failed: {}",
             batch.sequences, batch.tokens, cudaGetErrorString(cudaGetLastError()));
}

}  // namespace

size_t gated_delta_chunked_scratch_bytes(int tokens, int sequences, const GatedDeltaShape& shape) {
  return place(nullptr, tokens, sequences, shape).bytes;
}

void gated_delta_rule_chunked(const bf16* convolved, const bf16* ba, const GatedDeltaBatch& batch,
                              const GatedDeltaShape& shape, const GatedDeltaWeights& weights,
                              bf16* o, const GatedDeltaCheckpoints& checkpoints, void* scratch,
                              cudaStream_t stream) {
  VAMP_CHECK(shape.head_dim == kDim && shape.key_heads >= 1 &&
                 shape.value_heads % shape.key_heads == 0 && checkpoints.every % 64 == 0 &&
                 batch.state_stride % 4 == 0,
             "gated_delta_rule_chunked: {} and {} heads of {}, a checkpoint every {} tokens",
             shape.key_heads, shape.value_heads, shape.head_dim, checkpoints.every);
  if (batch.tokens == 0) return;
  const Scratch s = place(scratch, batch.tokens, batch.sequences, shape);
  const int64_t size = shape.state_size();
  const dim3 grid(static_cast<unsigned>((size / 4 + kThreads - 1) / kThreads), batch.sequences);
  launch_overlapped("gated delta: prepare", prepare_kernel, batch.tokens, kThreads, 0, stream,
                    convolved, ba, batch, shape, weights, s);
  launch_overlapped("gated delta: states", move_states_kernel<true>, grid, kThreads, 0, stream,
                    batch, size, s.states);
  launch_flat(convolved + 2 * shape.key_heads * kDim, batch, shape, s, checkpoints, o, stream);
  launch_overlapped("gated delta: states", move_states_kernel<false>, grid, kThreads, 0, stream,
                    batch, size, s.states);
}

}  // namespace vamp::cuda
