#include <cooperative_groups.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/gated_delta.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/cuda/wgmma.cuh"

namespace vamp::cuda {
namespace {

namespace cg = cooperative_groups;
using bf16 = __nv_bfloat16;

// A block a value head of a sequence. Eight lanes have two columns of its state, half of them
// apart, and an eighth of their rows each. The state comes by the copy unit while the kernel in
// front runs and stays in shared memory, so that two blocks have room on a multiprocessor. The
// blocks of a key head's value heads are a cluster: all convolve its q and k, and the first keeps
// their new inputs once all have read the old ones. States pass L2 as the first to leave it:
// nothing reads them before the next step, and written back late they hold up the weights that come
// next.
constexpr int kDim = 128, kLanes = 8, kThreads = 512, kWarps = kThreads / 32;
constexpr int kColumns = kDim * kLanes / kThreads, kApart = kDim / kColumns;
constexpr int kParts = kDim / (4 * kLanes);  // of four rows each, 32 apart
constexpr int kMaxWidth = 4;

struct Shared {
  float state[kDim][kDim];  // [column][row]
  float q[kDim], k[kDim], v[kDim];
  float squares[kWarps];
  Barrier full;
};

// The convolution at one channel: inputs oldest first, the new one, which a kernel in front wrote,
// last.
struct Channel {
  bf16 inputs[kMaxWidth];
  bf16* state;
};
__device__ Channel load_channel(const GatedDeltaBatch& batch, const GatedDeltaShape& shape, int s,
                                int channel) {
  Channel c{};
  const int before = shape.conv_width - 1;
  c.state = static_cast<bf16*>(batch.conv_states) + batch.slots[s] * batch.conv_stride +
            static_cast<int64_t>(channel) * before;
  const bool empty = batch.starts[s] != 0;
#pragma unroll
  for (int i = 0; i < kMaxWidth - 1; ++i)
    if (i < before && !empty) c.inputs[i] = c.state[i];
  return c;
}
__device__ void add_input(Channel& c, bf16 input, int width) {
#pragma unroll
  for (int i = 0; i < kMaxWidth; ++i)
    if (i == width - 1) c.inputs[i] = input;
}
__device__ void keep_inputs(const Channel& c, int width) {
#pragma unroll
  for (int i = 0; i + 1 < kMaxWidth; ++i)
    if (i < width - 1) c.state[i] = c.inputs[i + 1];
}
__device__ void load_taps(float (&taps)[kMaxWidth], const float* weights, int width) {
#pragma unroll
  for (int i = 0; i < kMaxWidth; ++i)
    if (i < width) taps[i] = weights[i];
}
__device__ float convolve(const Channel& c, const float (&taps)[kMaxWidth]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMaxWidth; ++i) sum = fmaf(taps[i], __bfloat162float(c.inputs[i]), sum);
  return silu(sum);
}

__device__ float dot(const float4& a, const float4& b, float sum) {
  return fmaf(a.w, b.w, fmaf(a.z, b.z, fmaf(a.y, b.y, fmaf(a.x, b.x, sum))));
}
__device__ float lanes_sum(float sum) {
#pragma unroll
  for (int lane = kLanes / 2; lane > 0; lane >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  return sum;
}

// The sum over a block's threads [0, 32 warps); every thread gets it.
__device__ float sum_of_warps(Shared& shared, float mine, int first, int count) {
  const int warp = threadIdx.x / 32;
  mine = warp_sum(mine);
  if (threadIdx.x % 32 == 0) shared.squares[warp] = mine;
  __syncthreads();
  float sum = 0;
  for (int w = first; w < first + count; ++w) sum += shared.squares[w];
  return sum;
}

__global__ void __launch_bounds__(kThreads, 2)
    decode_kernel(const bf16* qkvz, const bf16* ba, GatedDeltaBatch batch, GatedDeltaShape shape,
                  GatedDeltaWeights weights, bf16* out) {
  extern __shared__ __align__(128) char bytes[];
  Shared& shared = *reinterpret_cast<Shared*>(bytes);
  const int head = blockIdx.x, s = blockIdx.y, ratio = shape.ratio(), key = head / ratio;
  const int thread = threadIdx.x, column = thread / kLanes, part = thread % kLanes;
  const int own = column + part % kColumns * kApart;  // the column whose result this thread ends
  allow_next();
  const bool empty = batch.starts[s] != 0;
  float* const memory =
      batch.states + batch.slots[s] * batch.state_stride + static_cast<int64_t>(head) * kDim * kDim;
  if (thread == 0) {
    shared.full.init(1);
    fence_barrier_init();
    if (!empty) {
      shared.full.arrive_expecting(sizeof(shared.state));
      copy_bytes(shared.state, memory, sizeof(shared.state), shared.full, read_once_policy());
    }
  }
  // Warps 0-3: q, 4-7: k, 8-11: v.
  const int kind = thread / kDim, d = thread % kDim, keys = shape.key_heads * kDim;
  const int channel = kind == 0   ? key * kDim + d
                      : kind == 1 ? keys + key * kDim + d
                                  : 2 * keys + head * kDim + d;
  Channel inputs{};
  float taps[kMaxWidth] = {};
  if (kind < 3) {
    inputs = load_channel(batch, shape, s, channel);
    load_taps(taps, weights.conv + static_cast<int64_t>(channel) * shape.conv_width,
              shape.conv_width);
  }
  if (ratio > 1) cg::this_cluster().barrier_arrive();
  const int t = batch.query_start[s];
  const bf16* row = qkvz + t * shape.qkvz_row();
  const bf16* gates = ba + t * shape.ba_row();
  const float dt_bias = weights.dt_bias[head], rate = expf(weights.a_log[head]),
              norm = weights.norm[own];
  wait_for_previous();
  const bf16 a_gate = gates[shape.a_column(head)], b_gate = gates[shape.b_column(head)],
             z = row[shape.z_column(head) + own];
  if (kind < 3) add_input(inputs, row[shape.qkvz_column(channel)], shape.conv_width);
  if (ratio > 1) cg::this_cluster().barrier_wait();  // every block has read q's and k's old inputs
  float x = 0;
  if (kind < 3) {
    if (kind == 2 || head % ratio == 0) keep_inputs(inputs, shape.conv_width);
    x = convolve(inputs, taps);
    x = __bfloat162float(__float2bfloat16(x));  // as where the parts run apart
  }
  const float a = __bfloat162float(a_gate) + dt_bias;
  const float softplus = a > 20 ? a : log1pf(expf(a));
  const float beta = 1 / (1 + expf(-__bfloat162float(b_gate)));
  const float decay = expf(-rate * softplus);
  const float squares = sum_of_warps(shared, x * x, kind < 3 ? kind * 4 : 0, 4);
  if (kind == 0) shared.q[d] = x * (rsqrtf(squares + 1e-6f) * rsqrtf(static_cast<float>(kDim)));
  if (kind == 1) shared.k[d] = x * rsqrtf(squares + 1e-6f);
  if (kind == 2) shared.v[d] = x;
  __syncthreads();

  const auto rows = [&](auto* from, int p) {
    return reinterpret_cast<float4*>(from + part * 4) + p * kLanes;
  };
  if (empty) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
#pragma unroll
      for (int p = 0; p < kParts; ++p) *rows(shared.state[column + c * kApart], p) = {};
  } else {
    shared.full.wait(0);
  }
  float4 k[kParts];
#pragma unroll
  for (int p = 0; p < kParts; ++p) k[p] = *rows(shared.k, p);
  float change[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int at = column + c * kApart;
    float known = 0;
#pragma unroll
    for (int p = 0; p < kParts; ++p) known = dot(*rows(shared.state[at], p), k[p], known);
    change[c] = beta * (shared.v[at] - decay * lanes_sum(known));
  }
  float4 q[kParts];
#pragma unroll
  for (int p = 0; p < kParts; ++p) q[p] = *rows(shared.q, p);
  float squares_of_o = 0, o = 0;
#pragma unroll
  for (int c = 0; c < kColumns; ++c) {
    const int at = column + c * kApart;
    float read = 0;
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      float4 state = *rows(shared.state[at], p);
      state.x = fmaf(k[p].x, change[c], decay * state.x);
      state.y = fmaf(k[p].y, change[c], decay * state.y);
      state.z = fmaf(k[p].z, change[c], decay * state.z);
      state.w = fmaf(k[p].w, change[c], decay * state.w);
      __stcs(rows(memory + at * kDim, p), state);
      read = dot(state, q[p], read);
    }
    read = __bfloat162float(__float2bfloat16(lanes_sum(read)));
    squares_of_o = fmaf(read, read, squares_of_o);
    if (part == c) o = read;
  }
  const float all = sum_of_warps(shared, part == 0 ? squares_of_o : 0.0f, 0, kWarps);
  if (part < kColumns) {
    const float scale = rsqrtf(all / kDim + weights.norm_eps);
    out[(static_cast<int64_t>(t) * shape.value_heads + head) * kDim + own] =
        __float2bfloat16(o * scale * norm * silu(__bfloat162float(z)));
  }
}

}  // namespace

void gated_delta_decode(const bf16* qkvz, const bf16* ba, const GatedDeltaBatch& batch,
                        const GatedDeltaShape& shape, const GatedDeltaWeights& weights, bf16* out,
                        cudaStream_t stream) {
  VAMP_CHECK(gated_delta_takes_decode(batch, shape) && batch.state_stride % 4 == 0 &&
                 reinterpret_cast<uintptr_t>(batch.states) % 16 == 0,
             "gated_delta_decode: {} and {} heads of {}, stride {}", shape.key_heads,
             shape.value_heads, shape.head_dim, batch.state_stride);
  if (batch.tokens == 0) return;
  check(cudaFuncSetAttribute(decode_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             sizeof(Shared)),
        "gated_delta_decode's shared memory");
  launch_overlapped_clusters("gated_delta_decode", decode_kernel,
                             dim3(shape.value_heads, batch.sequences), kThreads, sizeof(Shared),
                             stream, shape.ratio(), qkvz, ba, batch, shape, weights, out);
}

}  // namespace vamp::cuda
