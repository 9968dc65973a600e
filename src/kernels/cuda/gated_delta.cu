#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/gated_delta.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/vec.cuh"

namespace vamp::cuda {
namespace {

using bf16 = __nv_bfloat16;

// Columns of a state are independent: a block takes 16 of one head's, eight lanes each, a lane
// kDim / 8 rows in registers. Tokens come in tiles through shared memory.
constexpr int kColumns = 16, kLanes = 8, kRuleThreads = kColumns * kLanes, kTile = 16;

template <int kDim>
struct RuleShared {
  float q[kTile][kDim], k[kTile][kDim];
  float v[kTile][kColumns], o[kTile][kColumns][kLanes];  // o: every lane's part
  float decay[kTile], beta[kTile];
};

// A tile of tokens on its way to shared memory: loaded while the tile before is at work.
template <int kDim>
class TileLoader {
 public:
  __device__ TileLoader(const bf16* convolved, const bf16* ba, const GatedDeltaShape& shape,
                        const GatedDeltaWeights& weights, int head, int column)
      : convolved_(convolved + head / shape.ratio() * kDim),
        v_(convolved + 2 * shape.key_heads * kDim + head * kDim + column),
        gates_(ba + shape.b_column(head)),
        keys_(shape.key_heads * kDim),
        row_(shape.channels()),
        ratio_(shape.ratio()),
        gate_row_(shape.ba_row()),
        rate_(-expf(weights.a_log[head])),
        dt_bias_(weights.dt_bias[head]) {}

  // Tokens t ... t + count, count at most kTile.
  __device__ void load(int t, int count) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    count_ = count;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int i = r * kWarps + warp;  // even: q of token i / 2, odd: k
      if (i >= 2 * count) break;
      const bf16* row = convolved_ + static_cast<int64_t>(t + i / 2) * row_ + i % 2 * keys_;
#pragma unroll
      for (int e = 0; e < kDim / 32; ++e) x_[r][e] = row[e * 32 + lane];
    }
#pragma unroll
    for (int r = 0; r < kValues; ++r) {
      const int i = r * kRuleThreads + static_cast<int>(threadIdx.x);
      if (i < count * kColumns)
        value_[r] = v_[static_cast<int64_t>(t + i / kColumns) * row_ + i % kColumns];
    }
    if (static_cast<int>(threadIdx.x) < count) {
      const bf16* gates = gates_ + static_cast<int64_t>(t + threadIdx.x) * gate_row_;
      b_ = gates[0];
      a_ = gates[ratio_];
    }
  }

  // q and k normalised, the gates applied.
  __device__ void store(RuleShared<kDim>& shared) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const int i = r * kWarps + warp;
      if (i >= 2 * count_) break;
      float squares = 0;
#pragma unroll
      for (int e = 0; e < kDim / 32; ++e) {
        const float x = __bfloat162float(x_[r][e]);
        squares += x * x;
      }
      const float scale = rsqrtf(warp_sum(squares) + 1e-6f) *
                          (i % 2 == 0 ? rsqrtf(static_cast<float>(kDim)) : 1.0f);
      float* const to = i % 2 == 0 ? shared.q[i / 2] : shared.k[i / 2];
#pragma unroll
      for (int e = 0; e < kDim / 32; ++e) to[e * 32 + lane] = __bfloat162float(x_[r][e]) * scale;
    }
#pragma unroll
    for (int r = 0; r < kValues; ++r) {
      const int i = r * kRuleThreads + static_cast<int>(threadIdx.x);
      if (i < count_ * kColumns) shared.v[i / kColumns][i % kColumns] = __bfloat162float(value_[r]);
    }
    if (static_cast<int>(threadIdx.x) < count_) {
      const float a = __bfloat162float(a_) + dt_bias_;
      const float softplus = a > 20 ? a : log1pf(expf(a));
      shared.beta[threadIdx.x] = 1 / (1 + expf(-__bfloat162float(b_)));
      shared.decay[threadIdx.x] = expf(rate_ * softplus);
    }
  }

 private:
  static constexpr int kWarps = kRuleThreads / 32, kRows = 2 * kTile / kWarps,
                       kValues = kTile * kColumns / kRuleThreads;
  const bf16 *convolved_, *v_, *gates_;
  const int keys_, row_, ratio_;
  const int64_t gate_row_;
  const float rate_, dt_bias_;
  bf16 x_[kRows][kDim / 32], value_[kValues], a_, b_;
  int count_ = 0;
};

template <int kDim>
__global__ void __launch_bounds__(kRuleThreads)
    rule_kernel(const bf16* convolved, const bf16* ba, GatedDeltaBatch batch, GatedDeltaShape shape,
                GatedDeltaWeights weights, bf16* o) {
  __shared__ RuleShared<kDim> shared;
  constexpr int kParts = kDim / (4 * kLanes);  // of four rows each: 32 apart, so that the lanes'
  static_assert(kDim % (4 * kLanes) == 0);     // reads of q and k fall into different banks
  allow_next();
  wait_for_previous();
  const int s = blockIdx.y, head = blockIdx.x / (kDim / kColumns),
            first = blockIdx.x % (kDim / kColumns) * kColumns;
  const int column = threadIdx.x / kLanes, part = threadIdx.x % kLanes, row = part * 4;
  const int begin = batch.query_start[s], end = batch.query_start[s + 1];
  if (begin == end) return;
  TileLoader<kDim> loader(convolved, ba, shape, weights, head, first);
  loader.load(begin, min(kTile, end - begin));
  float* const memory = batch.states + batch.slots[s] * batch.state_stride +
                        (static_cast<int64_t>(head) * kDim + first + column) * kDim + row;
  float state[kParts][4];
#pragma unroll
  for (int p = 0; p < kParts; ++p) {
    const float4 old =
        batch.starts[s] ? float4{} : *reinterpret_cast<const float4*>(memory + p * 32);
    state[p][0] = old.x;
    state[p][1] = old.y;
    state[p][2] = old.z;
    state[p][3] = old.w;
  }
  for (int t = begin; t < end; t += kTile) {
    const int count = min(kTile, end - t);
    loader.store(shared);
    __syncthreads();
    if (t + kTile < end) loader.load(t + kTile, min(kTile, end - t - kTile));
#pragma unroll 2
    for (int i = 0; i < count; ++i) {
      const float decay = shared.decay[i];
      float4 k[kParts];
      float known[4] = {};
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        k[p] = *reinterpret_cast<const float4*>(&shared.k[i][p * 32 + row]);
        const float of[4] = {k[p].x, k[p].y, k[p].z, k[p].w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          state[p][j] *= decay;
          known[j] = fmaf(state[p][j], of[j], known[j]);
        }
      }
      float sum = (known[0] + known[1]) + (known[2] + known[3]);
#pragma unroll
      for (int lane = kLanes / 2; lane > 0; lane >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, lane);
      const float change = shared.beta[i] * (shared.v[i][column] - sum);
      float out[4] = {};
#pragma unroll
      for (int p = 0; p < kParts; ++p) {
        const float4 q = *reinterpret_cast<const float4*>(&shared.q[i][p * 32 + row]);
        const float of_k[4] = {k[p].x, k[p].y, k[p].z, k[p].w}, of_q[4] = {q.x, q.y, q.z, q.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          state[p][j] = fmaf(of_k[j], change, state[p][j]);
          out[j] = fmaf(state[p][j], of_q[j], out[j]);
        }
      }
      // Joined after the tile: a sum over lanes here would hold up the next token.
      shared.o[i][column][part] = (out[0] + out[1]) + (out[2] + out[3]);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < count * kColumns; i += kRuleThreads) {
      const float* parts = shared.o[i / kColumns][i % kColumns];
      float sum = 0;
#pragma unroll
      for (int lane = 0; lane < kLanes; ++lane) sum += parts[lane];
      o[(static_cast<int64_t>(t + i / kColumns) * shape.value_heads + head) * kDim + first +
        i % kColumns] = __float2bfloat16(sum);
    }
  }
#pragma unroll
  for (int p = 0; p < kParts; ++p)
    *reinterpret_cast<float4*>(memory + p * 32) =
        make_float4(state[p][0], state[p][1], state[p][2], state[p][3]);
}

// One warp a row of a head.
template <int kDim>
__global__ void __launch_bounds__(256)
    norm_kernel(const bf16* o, const bf16* qkvz, int rows, GatedDeltaShape shape,
                GatedDeltaWeights weights, bf16* out) {
  allow_next();
  wait_for_previous();
  const int r = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32;
  if (r >= rows) return;
  const int t = r / shape.value_heads, head = r % shape.value_heads;
  const bf16* z = qkvz + t * shape.qkvz_row() + shape.z_column(head);
  constexpr int kEach = kDim / 32;  // neighbours of a lane
  struct alignas(2 * kEach) Some {
    bf16 v[kEach];
  };
  const int64_t row = static_cast<int64_t>(r) * kDim + lane * kEach;
  const Some in = *reinterpret_cast<const Some*>(o + row);
  const Some gate = *reinterpret_cast<const Some*>(z + lane * kEach);
  float x[kEach], squares = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    x[i] = __bfloat162float(in.v[i]);
    squares += x[i] * x[i];
  }
  const float scale = rsqrtf(warp_sum(squares) / kDim + weights.norm_eps);
  Some result;
#pragma unroll
  for (int i = 0; i < kEach; ++i)
    result.v[i] = __float2bfloat16(x[i] * scale * weights.norm[lane * kEach + i] *
                                   silu(__bfloat162float(gate.v[i])));
  *reinterpret_cast<Some*>(out + row) = result;
}

void check_shape(const GatedDeltaShape& shape) {
  VAMP_CHECK((shape.head_dim == 32 || shape.head_dim == 64 || shape.head_dim == 128) &&
                 shape.key_heads >= 1 && shape.value_heads % shape.key_heads == 0,
             "gated delta: {} and {} heads of {}", shape.key_heads, shape.value_heads,
             shape.head_dim);
}

}  // namespace

void gated_delta_rule(const bf16* convolved, const bf16* ba, const GatedDeltaBatch& batch,
                      const GatedDeltaShape& shape, const GatedDeltaWeights& weights, bf16* o,
                      cudaStream_t stream) {
  check_shape(shape);
  if (batch.tokens == 0) return;
  const auto kernel = shape.head_dim == 32   ? rule_kernel<32>
                      : shape.head_dim == 64 ? rule_kernel<64>
                                             : rule_kernel<128>;
  const dim3 grid(shape.value_heads * (shape.head_dim / kColumns), batch.sequences);
  launch_overlapped("gated_delta_rule", kernel, grid, kRuleThreads, 0, stream, convolved, ba, batch,
                    shape, weights, o);
}

void gated_delta_norm(const bf16* o, const bf16* qkvz, int tokens, const GatedDeltaShape& shape,
                      const GatedDeltaWeights& weights, bf16* out, cudaStream_t stream) {
  check_shape(shape);
  if (tokens == 0) return;
  const int rows = tokens * shape.value_heads;
  const auto kernel = shape.head_dim == 32   ? norm_kernel<32>
                      : shape.head_dim == 64 ? norm_kernel<64>
                                             : norm_kernel<128>;
  launch_overlapped("gated_delta_norm", kernel, (rows + 7) / 8, 256, 0, stream, o, qkvz, rows,
                    shape, weights, out);
}

}  // namespace vamp::cuda
