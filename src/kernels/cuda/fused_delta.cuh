// Gated DeltaNet of the fused decode step (kernels/gated_delta.h says what is computed). A unit is
// a quarter of the columns of a value head of a token: its state comes through the ring, its inputs
// from the input product, and what it can't do alone, the norm over all of its head, is done by who
// multiplies the output.
#pragma once

#include "kernels/cuda/fused_exchange.cuh"
#include "kernels/cuda/fused_stream.cuh"

namespace vamp::cuda::fused {

constexpr int kDeltaLanes =
    kConsumers / kQuarter;  // of a column, each with every so many'th 4 rows
constexpr int kDeltaParts = kDeltaDim / (4 * kDeltaLanes);

struct DeltaShared {
  // q and k after the convolution, their sums of squares and those of the output, a warp's each.
  float x[kConsumers];
  float squares[kWarps], out_squares[kWarps];
};

// The convolution of one channel: inputs oldest first, the new one last.
struct Channel {
  bf16 inputs[kDeltaWidth];
  float4 weights;

  __device__ void load(const FusedLayer& layer, const bf16* state, int channel, bool empty) {
#pragma unroll
    for (int i = 0; i + 1 < kDeltaWidth; ++i) inputs[i] = empty ? bf16{} : state[i];
    weights = __ldg(reinterpret_cast<const float4*>(layer.delta.conv) + channel);
  }
  // Rounded, as where the parts of the layer run apart.
  __device__ float convolve() const {
    const float of[kDeltaWidth] = {weights.x, weights.y, weights.z, weights.w};
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kDeltaWidth; ++i) sum = fmaf(of[i], __bfloat162float(inputs[i]), sum);
    return __bfloat162float(__float2bfloat16(silu(sum)));
  }
};

// What a thread reads of a unit: one channel of q or k, and with the other lanes of its column that
// column's of v, z, and the head's a and b.
struct DeltaInputs {
  enum { kQk, kV, kZ, kA, kB, kWords };
  Channel qk, v;
  float a_log, dt_bias, norm;
  // In the row of the input product, which lies there by key head, as GatedDeltaShape says.
  const bf16* row;
  int of_qk, of_v, of_b;
  uint32_t words[kWords];
  bool empty;

  __device__ __forceinline__ int column(const Args& a, int i) const {
    const int ratio = a.shape.delta.ratio();
    return i == kQk  ? of_qk
           : i == kV ? of_v
           : i == kZ ? of_v + ratio * kDeltaDim
           : i == kA ? of_b + ratio
                     : of_b;
  }
  __device__ __forceinline__ void peek(const Args& a) {
#pragma unroll
    for (int i = 0; i < kWords; ++i)
      words[i] = peek4(reinterpret_cast<const uint32_t*>(row) + column(a, i) / 2);
  }
  __device__ __forceinline__ void load(const Args& a, const FusedLayer& layer, uint32_t turn,
                                       const Lane& me, int u) {
    const GatedDeltaShape& shape = a.shape.delta;
    const DeltaUnit unit(a, u);
    const int key_channels = shape.key_heads * kDeltaDim, ratio = shape.ratio();
    const int head_row = (2 + 2 * ratio) * kDeltaDim;
    const int column = unit.quarter * kQuarter + me.thread / kDeltaLanes;
    const int d = me.thread % kDeltaDim, is_k = me.thread / kDeltaDim;
    row = a.delta_in.of(turn) + static_cast<int64_t>(unit.token) * a.delta_row;
    of_qk = unit.key * head_row + is_k * kDeltaDim + d;
    of_v = unit.key * head_row + (2 + unit.of_key) * kDeltaDim + column;
    of_b = shape.key_heads * head_row + unit.key * 2 * ratio + unit.of_key;
    peek(a);
    empty = a.batch.starts[unit.token] != 0;
    const int channel = is_k * key_channels + unit.key * kDeltaDim + d;
    qk.load(layer, unit.conv_state(a, layer, channel), channel, empty);
    const int v_channel = 2 * key_channels + unit.head * kDeltaDim + column;
    v.load(layer, unit.conv_state(a, layer, v_channel), v_channel, empty);
    a_log = __ldg(layer.delta.a_log + unit.head);
    dt_bias = __ldg(layer.delta.dt_bias + unit.head);
    norm = __ldg(layer.delta.norm + column);
  }
  __device__ __forceinline__ void wait(const Args& a) {
    while (true) {
      bool waits = false;
#pragma unroll
      for (int i = 0; i < kWords; ++i) waits |= words[i] == kUnwritten;
      if (!__any_sync(0xffffffffu, waits)) break;
      peek(a);
    }
  }
  __device__ bf16 bits(const Args& a, int i) const {
    return __ushort_as_bfloat16(
        static_cast<unsigned short>(column(a, i) % 2 != 0 ? words[i] >> 16 : words[i]));
  }
  __device__ float value(const Args& a, int i) const {
    return __bfloat162float(bits(a, i));
  }
};

// All consumers, of one unit.
__device__ __forceinline__ void run_unit(const Args& a, const FusedLayer& layer, uint32_t turn,
                                         uint32_t index, const Lane& me, int u, DeltaInputs& in,
                                         Stream& stream, DeltaShared& shared) {
  const DeltaUnit unit(a, u);
  const int in_quarter = me.thread / kDeltaLanes, part = me.lane % kDeltaLanes;
  const int column = unit.quarter * kQuarter + in_quarter;
  in.wait(a);
  in.qk.inputs[kDeltaWidth - 1] = in.bits(a, DeltaInputs::kQk);
  in.v.inputs[kDeltaWidth - 1] = in.bits(a, DeltaInputs::kV);
  const float x = in.qk.convolve();
  shared.x[me.thread] = x;
  const float squares = warp_sum(x * x);
  if (me.lane == 0) shared.squares[me.warp] = squares;
  const float value = in.v.convolve(), z = in.value(a, DeltaInputs::kZ);
  const float step = in.value(a, DeltaInputs::kA) + in.dt_bias;
  const float softplus = step > 20 ? step : log1pf(expf(step));
  const float decay = expf(-expf(in.a_log) * softplus);
  const float beta = 1 / (1 + expf(-in.value(a, DeltaInputs::kB)));
  // Of the column: rows 4 part ... and every 4 kDeltaLanes further.
  float state[kDeltaParts][4];
  stream.wait();
  const float* const from =
      reinterpret_cast<const float*>(stream.stage()) + in_quarter * kDeltaDim + part * 4;
#pragma unroll
  for (int p = 0; p < kDeltaParts; ++p) {
    const float4 old = *reinterpret_cast<const float4*>(from + p * 4 * kDeltaLanes);
    state[p][0] = in.empty ? 0 : old.x * decay;
    state[p][1] = in.empty ? 0 : old.y * decay;
    state[p][2] = in.empty ? 0 : old.z * decay;
    state[p][3] = in.empty ? 0 : old.w * decay;
  }
  stream.release(me);
  stream.pass_one();
  sync_consumers();
  // Only this unit reads its v channels' inputs: its lanes have.
  if (part == 0) {
    bf16* const to =
        unit.conv_state(a, layer, (2 * a.shape.delta.key_heads + unit.head) * kDeltaDim + column);
#pragma unroll
    for (int i = 0; i + 1 < kDeltaWidth; ++i) to[i] = in.v.inputs[i + 1];
  }
  const auto scale_of = [&](int first) {
    const float4 of = *reinterpret_cast<const float4*>(&shared.squares[first]);
    return rsqrtf((of.x + of.y) + (of.z + of.w) + 1e-6f);
  };
  const float q_scale = scale_of(0) * rsqrtf(static_cast<float>(kDeltaDim)),
              k_scale = scale_of(kWarps / 2);
  const auto rows = [&](int first, int p, float scale, float(&to)[4]) {
    const float4 of =
        *reinterpret_cast<const float4*>(&shared.x[first + (p * kDeltaLanes + part) * 4]);
    to[0] = of.x * scale, to[1] = of.y * scale, to[2] = of.z * scale, to[3] = of.w * scale;
  };
  const auto join = [&](const float(&of)[4]) {
    float sum = (of[0] + of[1]) + (of[2] + of[3]);
#pragma unroll
    for (int lane = kDeltaLanes / 2; lane > 0; lane >>= 1)
      sum += __shfl_xor_sync(0xffffffffu, sum, lane);
    return sum;
  };
  float k[kDeltaParts][4], known[4] = {}, read[4] = {};
#pragma unroll
  for (int p = 0; p < kDeltaParts; ++p) {
    rows(kDeltaDim, p, k_scale, k[p]);
#pragma unroll
    for (int j = 0; j < 4; ++j) known[j] = fmaf(state[p][j], k[p][j], known[j]);
  }
  const float change = beta * (value - join(known));
#pragma unroll
  for (int p = 0; p < kDeltaParts; ++p) {
    float q[4];
    rows(0, p, q_scale, q);
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      state[p][j] = fmaf(k[p][j], change, state[p][j]);
      read[j] = fmaf(state[p][j], q[j], read[j]);
    }
  }
  const float o = __bfloat162float(__float2bfloat16(join(read)));
  const float out = o * in.norm * silu(z);
  const uint32_t word = pack_bf16(out, __shfl_down_sync(0xffffffffu, out, kDeltaLanes));
  if (me.lane % (2 * kDeltaLanes) == 0)
    publish(a.mixed, index,
            (static_cast<int64_t>(unit.token) * a.out_width + unit.head * kDeltaDim + column) / 2,
            word);
  float out_squares = o * o;  // of the warp's columns
#pragma unroll
  for (int lane = kDeltaLanes; lane < 32; lane *= 2)
    out_squares += __shfl_xor_sync(0xffffffffu, out_squares, lane);
  if (me.lane == 0) shared.out_squares[me.warp] = out_squares;
  sync_consumers();
  if (me.thread == 0) {
    float sum = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += shared.out_squares[w];
    publish(a.squares, turn, u, __float_as_uint(sum));
  }
  float* const to = unit.state(a, layer) + in_quarter * kDeltaDim + part * 4;
#pragma unroll
  for (int p = 0; p < kDeltaParts; ++p)
    *reinterpret_cast<float4*>(to + p * 4 * kDeltaLanes) =
        make_float4(state[p][0], state[p][1], state[p][2], state[p][3]);
}

// All consumers, of this block's units. `turn`: that of what layers with Gated DeltaNet tell
// each other, `index`: that of the output, which lacks the norm's 1 / sqrt(mean(o²) + eps).
__device__ inline void run_delta(const Args& a, const FusedLayer& layer, uint32_t turn,
                                 uint32_t index, Stream& stream, DeltaShared& shared) {
  const int units = delta_units(a), blocks = static_cast<int>(gridDim.x);
  const Lane me;
#pragma unroll 1
  for (int u = static_cast<int>(blockIdx.x); u < units; u += blocks) {
    DeltaInputs in;
    in.load(a, layer, turn, me, u);
    run_unit(a, layer, turn, index, me, u, in, stream, shared);
  }
}

// The new inputs of q's and k's convolutions, which many blocks' units read, to the memories: call
// it when all blocks have run run_delta. All consumers.
__device__ inline void keep_inputs(const Args& a, const FusedLayer& layer, uint32_t turn) {
  const GatedDeltaShape& shape = a.shape.delta;
  const int units = delta_units(a), head_row = (2 + 2 * shape.ratio()) * kDeltaDim;
  const Lane me;
  const int is_k = me.thread / kDeltaDim, d = me.thread % kDeltaDim;
#pragma unroll 1
  for (int u = static_cast<int>(blockIdx.x); u < units; u += static_cast<int>(gridDim.x)) {
    const DeltaUnit unit(a, u);
    if (unit.quarter != 0 || unit.of_key != 0) continue;
    bf16* const state =
        unit.conv_state(a, layer, (is_k * shape.key_heads + unit.key) * kDeltaDim + d);
    const bf16* const row = a.delta_in.of(turn) + static_cast<int64_t>(unit.token) * a.delta_row;
    const int column = unit.key * head_row + is_k * kDeltaDim + d;
    const uint32_t word = peek4(row + column / 2 * 2);
    const bool empty = a.batch.starts[unit.token] != 0;
#pragma unroll
    for (int i = 0; i + 2 < kDeltaWidth; ++i) state[i] = empty ? bf16{} : state[i + 1];
    state[kDeltaWidth - 2] =
        __ushort_as_bfloat16(static_cast<unsigned short>(column % 2 != 0 ? word >> 16 : word));
  }
}

// Where the squares of a head's quarters are: a lane's of token lane % 4, head 4 (lane / 4) + warp
// / 2, to which this warp's values of stage lane / 4 of the output product belong; null: none.
__device__ __forceinline__ const float* squares_of_head(const Args& a, uint32_t turn,
                                                        const Lane& me) {
  static_assert(kChunkValues == 4 * kDeltaDim && kMaxTokens == 4 && kOutSteps / 2 <= 8 &&
                kQuarters == 4);
  const int heads = a.shape.delta.value_heads, head = 4 * me.group + me.warp / 2;
  if (me.quad >= a.tokens || head >= heads) return nullptr;
  return a.squares.of(turn) + (me.quad * heads + head) * kQuarters;
}
__device__ __forceinline__ float scale_of_head(const uint4& squares, const FusedLayer& layer) {
  const float sum = (__uint_as_float(squares.x) + __uint_as_float(squares.y)) +
                    (__uint_as_float(squares.z) + __uint_as_float(squares.w));
  return rsqrtf(sum / kDeltaDim + layer.delta.norm_eps);
}

}  // namespace vamp::cuda::fused
