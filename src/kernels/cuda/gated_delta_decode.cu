#include <cooperative_groups.h>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/gated_delta.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vec.cuh"

namespace vamp::cuda {
namespace {

namespace cg = cooperative_groups;
using bf16 = __nv_bfloat16;

// A block a value head of a sequence, four lanes a column of its state, each with a quarter of the
// rows in registers. The blocks of a key head's value heads are a cluster: all convolve its q and
// k, and the first keeps their new inputs once all have read the old ones. States pass L2 as the
// first to leave it: nothing reads them before the next step, and written back late they hold up
// the weights that come next.
constexpr int kDim = 128, kLanes = 4, kThreads = kDim * kLanes, kWarps = kThreads / 32;
constexpr int kParts = kDim / (4 * kLanes);  // of four rows each, 16 apart
constexpr int kMaxWidth = 4, kMaxRatio = 8;

struct Shared {
  float q[kDim], k[kDim], v[kDim];
  float squares[kWarps];
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
__device__ float convolve(const Channel& c, const float* weights, int width) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kMaxWidth; ++i)
    if (i < width) sum = fmaf(weights[i], __bfloat162float(c.inputs[i]), sum);
  return silu(sum);
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

__global__ void __launch_bounds__(kThreads)
    decode_kernel(const bf16* qkvz, const bf16* ba, GatedDeltaBatch batch, GatedDeltaShape shape,
                  GatedDeltaWeights weights, bf16* out) {
  __shared__ Shared shared;
  const int head = blockIdx.x, s = blockIdx.y, ratio = shape.ratio(), key = head / ratio;
  const int thread = threadIdx.x, column = thread / kLanes, part = thread % kLanes;
  allow_next();
  float* const memory = batch.states + batch.slots[s] * batch.state_stride +
                        (static_cast<int64_t>(head) * kDim + column) * kDim + part * 4;
  float state[kParts][4];
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const float4 old = batch.starts[s]
                           ? float4{}
                           : __ldcs(reinterpret_cast<const float4*>(memory + p * 4 * kLanes));
    state[p][0] = old.x;
    state[p][1] = old.y;
    state[p][2] = old.z;
    state[p][3] = old.w;
  }
  // Warps 0-3: q, 4-7: k, 8-11: v.
  const int kind = thread / kDim, d = thread % kDim, keys = shape.key_heads * kDim;
  const int channel = kind == 0   ? key * kDim + d
                      : kind == 1 ? keys + key * kDim + d
                                  : 2 * keys + head * kDim + d;
  Channel inputs{};
  if (kind < 3) inputs = load_channel(batch, shape, s, channel);
  const int t = batch.query_start[s];
  const bf16* row = qkvz + t * shape.qkvz_row();
  wait_for_previous();
  float x = 0;
  if (kind < 3) {
    add_input(inputs, row[shape.qkvz_column(channel)], shape.conv_width);
    x = convolve(inputs, weights.conv + static_cast<int64_t>(channel) * shape.conv_width,
                 shape.conv_width);
    x = __bfloat162float(__float2bfloat16(x));  // as where the parts run apart
  }
  const float squares = sum_of_warps(shared, x * x, kind < 3 ? kind * 4 : 0, 4);
  if (kind == 0) shared.q[d] = x * (rsqrtf(squares + 1e-6f) * rsqrtf(static_cast<float>(kDim)));
  if (kind == 1) shared.k[d] = x * rsqrtf(squares + 1e-6f);
  if (kind == 2) shared.v[d] = x;
  if (ratio > 1)
    cg::this_cluster().sync();  // every block has read q's and k's old inputs
  else
    __syncthreads();
  if (kind == 2 || (kind < 2 && head % ratio == 0)) keep_inputs(inputs, shape.conv_width);

  const bf16* gates = ba + t * shape.ba_row();
  const float a = __bfloat162float(gates[shape.a_column(head)]) + weights.dt_bias[head];
  const float softplus = a > 20 ? a : log1pf(expf(a));
  const float beta = 1 / (1 + expf(-__bfloat162float(gates[shape.b_column(head)])));
  const float decay = expf(-expf(weights.a_log[head]) * softplus);
  float known[4] = {};
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const float4 k = *reinterpret_cast<const float4*>(&shared.k[(p * kLanes + part) * 4]);
    const float of[4] = {k.x, k.y, k.z, k.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      state[p][j] *= decay;
      known[j] = fmaf(state[p][j], of[j], known[j]);
    }
  }
  const auto join = [](const float(&of)[4]) {
    float sum = (of[0] + of[1]) + (of[2] + of[3]);
#pragma unroll
    for (int lane = kLanes / 2; lane > 0; lane >>= 1)
      sum += __shfl_xor_sync(0xffffffffu, sum, lane);
    return sum;
  };
  const float change = beta * (shared.v[column] - join(known));
  float read[4] = {};
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const float4 k = *reinterpret_cast<const float4*>(&shared.k[(p * kLanes + part) * 4]);
    const float4 q = *reinterpret_cast<const float4*>(&shared.q[(p * kLanes + part) * 4]);
    const float of_k[4] = {k.x, k.y, k.z, k.w}, of_q[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      state[p][j] = fmaf(of_k[j], change, state[p][j]);
      read[j] = fmaf(state[p][j], of_q[j], read[j]);
    }
    __stcs(reinterpret_cast<float4*>(memory + p * 4 * kLanes),
           make_float4(state[p][0], state[p][1], state[p][2], state[p][3]));
  }
  const float o = __bfloat162float(__float2bfloat16(join(read)));
  __syncthreads();  // the sums in front have been read
  const float all = sum_of_warps(shared, part == 0 ? o * o : 0.0f, 0, kWarps);
  if (part == 0) {
    const float z = __bfloat162float(row[shape.z_column(head) + column]);
    const float scale = rsqrtf(all / kDim + weights.norm_eps);
    out[(static_cast<int64_t>(t) * shape.value_heads + head) * kDim + column] =
        __float2bfloat16(o * scale * weights.norm[column] * silu(z));
  }
}

}  // namespace

void gated_delta_decode(const bf16* qkvz, const bf16* ba, const GatedDeltaBatch& batch,
                        const GatedDeltaShape& shape, const GatedDeltaWeights& weights, bf16* out,
                        cudaStream_t stream) {
  VAMP_CHECK(gated_delta_takes_decode(batch, shape) && batch.state_stride % 4 == 0,
             "gated_delta_decode: {} and {} heads of {}", shape.key_heads, shape.value_heads,
             shape.head_dim);
  if (batch.tokens == 0) return;
  launch_overlapped_clusters("gated_delta_decode", decode_kernel,
                             dim3(shape.value_heads, batch.sequences), kThreads, 0, stream,
                             shape.ratio(), qkvz, ba, batch, shape, weights, out);
}

}  // namespace vamp::cuda
