#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/gated_delta.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/pack_bf16.cuh"
#include "kernels/cuda/vec.cuh"

namespace vamp::cuda {
namespace {

using bf16 = __nv_bfloat16;

constexpr int kMaxWidth = 4;
constexpr int kConvThreads = 128;

// The sequence that owns token t.
__device__ int sequence_of(const GatedDeltaBatch& batch, int t) {
  int low = 0, high = batch.sequences;  // the last with query_start <= t that is not empty
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (batch.query_start[middle] <= t)
      low = middle;
    else
      high = middle;
  }
  return low;
}

// What the convolution's threads share: eight channels each, whose weights they keep, and some
// tokens in a row.
constexpr int kChannels = 8, kConvTokens = 8;

struct Inputs {
  float x[kChannels];
};
__device__ Inputs widen(const Bf16x8& v) {
  return {{bf16_low(v.bits.x), bf16_high(v.bits.x), bf16_low(v.bits.y), bf16_high(v.bits.y),
           bf16_low(v.bits.z), bf16_high(v.bits.z), bf16_low(v.bits.w), bf16_high(v.bits.w)}};
}

__device__ Inputs input_at(const bf16* qkvz, const GatedDeltaShape& shape, int t, int channel) {
  return widen(load_bf16x8(qkvz + t * shape.qkvz_row() + shape.qkvz_column(channel)));
}

// A state's [channel, width - 1] as the eight channels' threads hold it. The widest lies as three
// 16-byte words a thread.
struct ConvState {
  bf16 x[kChannels][kMaxWidth - 1];
};
static_assert(sizeof(ConvState) == 3 * sizeof(uint4));
__device__ bf16* state_of(const GatedDeltaBatch& batch, const GatedDeltaShape& shape, int s,
                          int channel) {
  return static_cast<bf16*>(batch.conv_states) + batch.slots[s] * batch.conv_stride +
         static_cast<int64_t>(channel) * (shape.conv_width - 1);
}
union ConvStateWords {
  __device__ ConvStateWords() : words{} {}
  uint4 words[3];
  ConvState state;
};

__device__ void load_state(const bf16* from, int before, ConvStateWords& to) {
  if (before == kMaxWidth - 1) {
#pragma unroll
    for (int i = 0; i < 3; ++i) to.words[i] = reinterpret_cast<const uint4*>(from)[i];
    return;
  }
#pragma unroll
  for (int c = 0; c < kChannels; ++c) {
#pragma unroll
    for (int p = 0; p < kMaxWidth - 1; ++p)
      if (p < before) to.state.x[c][p] = from[c * before + p];
  }
}

// Inputs of a token and of those before it, oldest first; of narrower convolutions the first are
// unused.
struct Window {
  Inputs at[kMaxWidth];
};
__device__ Window window_at(const bf16* qkvz, const GatedDeltaBatch& batch,
                            const GatedDeltaShape& shape, int s, int t, int channel) {
  const int before = shape.conv_width - 1, begin = batch.query_start[s];
  ConvStateWords old;
  if (t - before < begin && !batch.starts[s])
    load_state(state_of(batch, shape, s, channel), before, old);
  Window w{};
#pragma unroll
  for (int i = 0; i < kMaxWidth; ++i) {
    const int at = t - (kMaxWidth - 1 - i);
    if (at < t - before) continue;
    if (at >= begin) {
      w.at[i] = input_at(qkvz, shape, at, channel);
      continue;
    }
    const int place = before - (begin - at);
#pragma unroll
    for (int p = 0; p < kMaxWidth - 1; ++p) {
      if (p != place) continue;
#pragma unroll
      for (int c = 0; c < kChannels; ++c) w.at[i].x[c] = __bfloat162float(old.state.x[c][p]);
    }
  }
  return w;
}

__device__ void store_state(const GatedDeltaBatch& batch, const GatedDeltaShape& shape, int s,
                            int channel, const Window& w) {
  const int before = shape.conv_width - 1;
  bf16* const to = state_of(batch, shape, s, channel);
  if (before == kMaxWidth - 1) {
    ConvStateWords fresh;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) {
#pragma unroll
      for (int p = 0; p < kMaxWidth - 1; ++p)
        fresh.state.x[c][p] = __float2bfloat16(w.at[p + 1].x[c]);
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) reinterpret_cast<uint4*>(to)[i] = fresh.words[i];
    return;
  }
#pragma unroll
  for (int i = 1; i < kMaxWidth; ++i) {
    const int place = i - (kMaxWidth - before);
    if (place < 0) continue;
#pragma unroll
    for (int c = 0; c < kChannels; ++c) to[c * before + place] = __float2bfloat16(w.at[i].x[c]);
  }
}

// `single`: every sequence has one token, whose thread also moves the state on.
__global__ void __launch_bounds__(kConvThreads)
    conv_kernel(const bf16* qkvz, GatedDeltaBatch batch, GatedDeltaShape shape,
                GatedDeltaWeights weights, bf16* out, bool single) {
  const int channel = (blockIdx.y * kConvThreads + threadIdx.x) * kChannels;
  const int first = single ? blockIdx.x : blockIdx.x * kConvTokens;
  const int end = single ? first + 1 : min(first + kConvTokens, batch.tokens);
  allow_next();
  if (channel >= shape.channels()) return;
  float filter[kMaxWidth][kChannels] = {};  // padded to the widest by zeros in front
#pragma unroll
  for (int i = 0; i < kMaxWidth; ++i) {
    const int place = i - (kMaxWidth - shape.conv_width);
    if (place < 0) continue;
#pragma unroll
    for (int c = 0; c < kChannels; ++c)
      filter[i][c] = weights.conv[(channel + c) * shape.conv_width + place];
  }
  wait_for_previous();
  int s = sequence_of(batch, first);
  const auto write = [&](int t, const Window& w) {
    uint32_t words[kChannels / 2];
#pragma unroll
    for (int c = 0; c < kChannels; c += 2) {
      float sum[2] = {};
#pragma unroll
      for (int i = 0; i < kMaxWidth; ++i) {
        sum[0] = fmaf(filter[i][c], w.at[i].x[c], sum[0]);
        sum[1] = fmaf(filter[i][c + 1], w.at[i].x[c + 1], sum[1]);
      }
      words[c / 2] = pack_bf16(silu(sum[0]), silu(sum[1]));
    }
    *reinterpret_cast<uint4*>(out + static_cast<int64_t>(t) * shape.channels() + channel) =
        make_uint4(words[0], words[1], words[2], words[3]);
  };
  // Well inside a sequence all inputs are asked for at once.
  if (end - first == kConvTokens && first - (kMaxWidth - 1) >= batch.query_start[s] &&
      end <= batch.query_start[s + 1]) {
    Bf16x8 rows[kConvTokens + kMaxWidth - 1];
    const bf16* from =
        qkvz + (first - (kMaxWidth - 1)) * shape.qkvz_row() + shape.qkvz_column(channel);
#pragma unroll
    for (int i = 0; i < kConvTokens + kMaxWidth - 1; ++i)
      rows[i] = load_bf16x8(from + i * shape.qkvz_row());
#pragma unroll
    for (int t = 0; t < kConvTokens; ++t)
      write(first + t,
            {{widen(rows[t]), widen(rows[t + 1]), widen(rows[t + 2]), widen(rows[t + 3])}});
    return;
  }
  Window w = window_at(qkvz, batch, shape, s, first, channel);
  for (int t = first;;) {
    write(t, w);
    if (++t == end) break;
    if (t < batch.query_start[s + 1]) {
#pragma unroll
      for (int i = 0; i < kMaxWidth - 1; ++i) w.at[i] = w.at[i + 1];
      w.at[kMaxWidth - 1] = input_at(qkvz, shape, t, channel);
    } else {
      s = sequence_of(batch, t);
      w = window_at(qkvz, batch, shape, s, t, channel);
    }
  }
  if (single) store_state(batch, shape, s, channel, w);
}

__global__ void __launch_bounds__(kConvThreads)
    conv_state_kernel(const bf16* qkvz, GatedDeltaBatch batch, GatedDeltaShape shape) {
  allow_next();
  wait_for_previous();
  const int s = blockIdx.x, channel = (blockIdx.y * kConvThreads + threadIdx.x) * kChannels;
  const int last = batch.query_start[s + 1] - 1;
  if (channel >= shape.channels() || last < batch.query_start[s]) return;
  store_state(batch, shape, s, channel, window_at(qkvz, batch, shape, s, last, channel));
}

}  // namespace

void gated_delta_conv(const bf16* qkvz, const GatedDeltaBatch& batch, const GatedDeltaShape& shape,
                      const GatedDeltaWeights& weights, bf16* out, cudaStream_t stream) {
  VAMP_CHECK(shape.conv_width >= 1 && shape.conv_width <= kMaxWidth && shape.head_dim % 8 == 0 &&
                 reinterpret_cast<uintptr_t>(batch.conv_states) % 16 == 0 &&
                 batch.conv_stride % 8 == 0,
             "gated delta: convolution of {}, heads of {}, states {} apart", shape.conv_width,
             shape.head_dim, batch.conv_stride);
  if (batch.tokens == 0) return;
  constexpr int kBlockChannels = kConvThreads * kChannels;
  const int blocks = (shape.channels() + kBlockChannels - 1) / kBlockChannels;
  const int columns = batch.single ? batch.tokens : (batch.tokens + kConvTokens - 1) / kConvTokens;
  // Where other tokens may still read the old state, it moves on in a launch of its own.
  launch_overlapped("gated_delta_conv", conv_kernel, dim3(columns, blocks), kConvThreads, 0, stream,
                    qkvz, batch, shape, weights, out, batch.single);
  if (!batch.single) {
    launch_overlapped("gated_delta_conv: states", conv_state_kernel, dim3(batch.sequences, blocks),
                      kConvThreads, 0, stream, qkvz, batch, shape);
  }
}

}  // namespace vamp::cuda
