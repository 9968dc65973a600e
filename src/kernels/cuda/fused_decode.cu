#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/fused_decode.h"
#include "kernels/cuda/fused_layer.cuh"

namespace vamp::cuda {
namespace fused {
namespace {

// Words of FusedDecode::sync_, a line of the cache apart: arrivals of blocks at the end of a
// launch, over all launches; how many had come when this one began; layers of all launches in front
// of it; blocks that have done with everything.
enum SyncWord { kArrivals = 0, kArrivalsBefore = 32, kEpoch = 64, kDone = 96, kSyncWords = 128 };

__device__ __forceinline__ Shared& shared_memory() {
  extern __shared__ __align__(1024) char memory[];
  return *reinterpret_cast<Shared*>(memory);
}

template <auto kRun, typename... Rest>
__device__ __noinline__ Position run_phase(int layer, Position at, Rest... rest) {
  Phase phase(shared_memory(), layer, at);
  (phase.*kRun)(rest...);
  return phase.position();
}

// All blocks have come here.
__device__ void sync_grid(const Args& a) {
  sync_consumers();
  if (threadIdx.x == 0) {
    const uint32_t all = a.sync[kArrivalsBefore] + gridDim.x;
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(a.sync + kArrivals) : "memory");
    uint32_t seen;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                   : "=r"(seen)
                   : "l"(a.sync + kArrivals)
                   : "memory");
    } while (static_cast<int32_t>(seen - all) < 0);
  }
  sync_consumers();
}

__device__ void consume(Shared& shared) {
  const Args& a = shared.args;
  // This block's rows of the residual.
  const Run run = share_of_block(a, kHidden / 8);
  const int token = static_cast<int>(threadIdx.x) / 16, row = static_cast<int>(threadIdx.x) % 16;
  const bool mine = token < a.tokens && run.first + row / 8 < run.end;
  bf16* const residual = a.residual + token * kHidden + run.first * 8 + row;
  if (token < kMaxTokens) shared.residual[token][row] = mine ? *residual : bf16{};
  Position at;
#pragma unroll 1
  for (int l = 0; l < a.count; ++l) {
    at = run_phase<&Phase::normed>(l, at, false);
    at = run_phase<&Phase::attention>(l, at);
    at = run_phase<&Phase::output>(l, at);
    at = run_phase<&Phase::normed>(l, at, true);
    at = run_phase<&Phase::combine>(l, at);
  }
  sync_consumers();
  sync_grid(a);
  // Everybody has read everything: what the last layer wrote is unwritten again.
  if (mine) *residual = shared.residual[token][row];
  const uint32_t last = shared.epoch + static_cast<uint32_t>(a.count) - 1;
  char* const exchanged = reinterpret_cast<char*>(a.in.of(last));  // the first array
  const uint4 none = {kUnwritten, kUnwritten, kUnwritten, kUnwritten};
  for (int64_t i = static_cast<int64_t>(blockIdx.x * kConsumers + threadIdx.x) * 16;
       i < a.exchange_bytes; i += static_cast<int64_t>(gridDim.x) * kConsumers * 16)
    put16(exchanged + i, none);
}

__global__ void __launch_bounds__(kThreads)
    fused_decode_kernel(const __grid_constant__ Args args,
                        const __grid_constant__ CUtensorMap contexts) {
  Shared& shared = shared_memory();
  copy_words(shared.args, args);
  copy_words(shared.layers[0], *args.layers);
  if (threadIdx.x == 0) {
    shared.unit = find_unit(args);
    shared.ring.init();
    shared.epoch = args.sync[kEpoch];
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers)
    return Producer(shared.args, contexts, shared.ring, shared.routing.items, shared.unit).run();
  consume(shared);
  // The last block tells the next launch where it begins.
  if (threadIdx.x == 0 && atomicAdd(args.sync + kDone, 1u) == gridDim.x - 1) {
    args.sync[kDone] = 0;
    args.sync[kArrivalsBefore] += gridDim.x;
    args.sync[kEpoch] += static_cast<uint32_t>(args.count);
  }
}

int num_blocks() {
  int device = 0, sms = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), "device attributes");
  return sms;
}
int in_row(const FusedShape& s) {
  return (s.heads + 2 * s.kv_heads) * s.head_dim;
}

// Where the arrays of an Args lie in the exchange; `bytes`: of one layer's.
struct Exchange {
  int64_t in, partial, scores, mixed, mid, logits, activation, end, bytes;
  Exchange(const FusedShape& s, int blocks) {
    const int64_t T = kMaxTokens, rows = int64_t{blocks} * kMaxRows;
    int64_t at = 0;
    const auto place = [&](int64_t size) {
      const int64_t from = at;
      at += (size + 127) / 128 * 128;
      return from;
    };
    in = place(T * in_row(s) * 2);
    partial = place(rows * kHeadDim * 4);
    scores = place(rows * 8);
    mixed = place(T * s.heads * s.head_dim * 2);
    mid = place(T * kHidden * 2);
    logits = place(T * ((s.moe.experts + 7) / 8 * 8) * 4);
    activation = place(T * s.moe.top_k * s.moe.intermediate * 2);
    end = place(T * kHidden * 2);
    bytes = at;
  }
};

}  // namespace
}  // namespace fused

bool FusedDecode::takes(const FusedShape& s) {
  using namespace fused;
  const int width = s.heads * s.head_dim;
  return s.hidden == kHidden && s.head_dim == kHeadDim && s.kv_heads > 0 &&
         s.heads % s.kv_heads == 0 && s.heads / s.kv_heads <= kMaxRows &&
         width % kStageValues == 0 && width <= kOutSteps / 2 * kStageValues &&
         s.moe.hidden == s.hidden && s.moe.intermediate % 64 == 0 &&
         s.moe.intermediate <= kMaxExpertSteps / 2 * kStageValues && s.moe.experts <= kMaxExperts &&
         s.moe.top_k <= s.moe.experts && s.moe.top_k * kMaxTokens <= kMaxPairs;
}

FusedDecode::FusedDecode(const FusedShape& shape, const std::vector<FusedLayer>& layers)
    : shape_(shape), blocks_(fused::num_blocks()), layers_(layers), sync_(fused::kSyncWords) {
  VAMP_CHECK(takes(shape), "fused_decode: hidden {}, {} heads of {}, {} experts of {}",
             shape.hidden, shape.heads, shape.head_dim, shape.moe.experts, shape.moe.intermediate);
  const auto map = [](const void* weights, int rows, int cols, int matrices = 1,
                      size_t stride = size_t{1} << 32) {
    return bf16_wide_tensor_map(weights, cols, rows, matrices, stride, 8, fused::kStageValues);
  };
  const int H = shape.hidden, I = shape.moe.intermediate, E = shape.moe.experts;
  std::vector<Maps> maps;
  for (const FusedLayer& l : layers)
    maps.push_back({map(l.in, fused::in_row(shape), H), map(l.out, H, shape.heads * shape.head_dim),
                    map(l.router, E, H), map(l.gate_up, 2 * I, H, E, shape.gate_up_stride),
                    map(l.down, H, I, E, shape.down_stride)});
  maps_ = DeviceBuffer<Maps>(maps);
  const fused::Exchange exchange(shape, blocks_);
  exchange_ = DeviceBuffer<char>(static_cast<size_t>(2 * exchange.bytes));
  check(cudaMemset(exchange_.get(), 0xff, exchange_.size()), "clearing");
  check(cudaMemset(sync_.get(), 0, sync_.size() * sizeof(uint32_t)), "clearing");
}

void FusedDecode::run(__nv_bfloat16* residual, const FusedBatch& batch, cudaStream_t stream) {
  const KvLayout& kv = batch.cache.layout;
  const int tokens = batch.attention.sequences;
  VAMP_CHECK(tokens <= kMaxTokens && tokens * shape_.kv_heads <= blocks_ &&
                 kv.dtype == DType::kBf16 && kv.block_tokens % 16 == 0 &&
                 kv.head_dim == shape_.head_dim && kv.kv_heads == shape_.kv_heads,
             "fused_decode: {} sequences, {} KV heads of {}, blocks of {} tokens", tokens,
             kv.kv_heads, kv.head_dim, kv.block_tokens);
  if (tokens == 0 || layers_.size() == 0) return;
  const fused::Exchange exchange(shape_, blocks_);
  const auto place = [&](auto& to, int64_t offset) {
    to.even = reinterpret_cast<decltype(to.even)>(exchange_.get() + offset);
    to.stride = exchange.bytes;
  };
  fused::Args args{};
  args.shape = shape_;
  args.batch = batch;
  args.layers = layers_.get();
  args.maps = maps_.get();
  args.count = static_cast<int>(layers_.size());
  args.tokens = tokens;
  args.in_row = fused::in_row(shape_);
  args.router_rows = (shape_.moe.experts + 7) / 8 * 8;
  args.out_width = shape_.heads * shape_.head_dim;
  args.blocks_inverse = static_cast<uint32_t>(
      ((uint64_t{1} << 32) + static_cast<uint64_t>(blocks_) - 1) / static_cast<uint64_t>(blocks_));
  args.residual = residual;
  args.sync = sync_.get();
  place(args.in, exchange.in);
  place(args.partial, exchange.partial);
  place(args.scores, exchange.scores);
  place(args.mixed, exchange.mixed);
  place(args.mid, exchange.mid);
  place(args.logits, exchange.logits);
  place(args.activation, exchange.activation);
  place(args.end, exchange.end);
  args.exchange_bytes = exchange.bytes;
  // Keys or values of a page's tokens lie in the arena as rows of one matrix.
  const CUtensorMap contexts =
      bf16_wide_tensor_map(batch.cache.arena, fused::kHeadDim, 1 << 30, 1, size_t{1} << 39,
                           fused::kPageTokens, fused::kHeadDim);
  const auto kernel = fused::fused_decode_kernel;
  constexpr int kBytes = sizeof(fused::Shared);
  static_assert(kBytes <= 227 * 1024);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
        "fused_decode's shared memory");
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks_));
  config.blockDim = dim3(fused::kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = &together;
  config.numAttrs = 1;
  check(cudaLaunchKernelEx(&config, kernel, args, contexts), "fused_decode");
}

}  // namespace vamp::cuda
