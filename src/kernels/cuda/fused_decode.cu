#include <algorithm>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/fused_decode.h"
#include "kernels/cuda/fused_layer.cuh"
#include "kernels/cuda/fused_producer.cuh"

namespace vamp::cuda {
namespace fused {
namespace {

// Words of FusedDecode::sync_, a line of the cache apart: arrivals of blocks at the end of a
// launch, over all launches; how many had come when this one began; blocks that have done with
// everything.
enum SyncWord { kArrivals = 0, kArrivalsBefore = 32, kDone = 64, kSyncWords = 96 };

template <typename Kind>
__device__ __forceinline__ Shared<Kind>& shared_memory() {
  extern __shared__ __align__(1024) char memory[];
  return *reinterpret_cast<Shared<Kind>*>(memory);
}

// What the warps do, in functions of their own, so that none costs another registers.
template <typename Kind, auto kRun, typename... Rest>
__device__ __noinline__ uint32_t run_phase(int layer, uint32_t at, Rest... rest) {
  Phase<Kind> phase(shared_memory<Kind>(), layer, Progress::from(at));
  (phase.*kRun)(rest...);
  return phase.progress().bits();
}

template <typename Kind>
__device__ __noinline__ void produce(const CUtensorMap& contexts) {
  Shared<Kind>& shared = shared_memory<Kind>();
  Producer<Kind>(shared.args, contexts, shared.ring, shared.routing.items, shared.unit).run();
}
template <typename Kind>
__device__ __noinline__ void finish() {
  Shared<Kind>& shared = shared_memory<Kind>();
  Finisher<Kind>(shared.args, shared.layers, shared.handover, shared.routing.items, shared.unit,
                 shared.mixer.attention)
      .run();
}

// All blocks' consumers and finishers have come here.
__device__ void sync_grid(const Args& a) {
  sync_with_finisher();
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
  sync_with_finisher();
}

template <typename Kind>
__device__ void consume(Shared<Kind>& shared) {
  using P = Phase<Kind>;
  const Args& a = shared.args;
  uint32_t at = 0;
#pragma unroll 1
  for (int l = 0; l < a.count; ++l) {
    at = run_phase<Kind, &P::normed>(l, at, false);
    if constexpr (Kind::kMixed) {
      at = shared.layers[l & 1].has_delta() ? run_phase<Kind, &P::delta>(l, at)
                                            : run_phase<Kind, &P::attention>(l, at);
    } else {
      at = run_phase<Kind, &P::attention>(l, at);
    }
    at = run_phase<Kind, &P::output>(l, at);
    at = run_phase<Kind, &P::normed>(l, at, true);
    at = run_phase<Kind, &P::down>(l, at);
  }
  sync_grid(a);
  // Everybody has read everything: all is unwritten again, and nothing drawn.
  for (int l = static_cast<int>(threadIdx.x); blockIdx.x == 0 && l < a.count; l += kConsumers)
    a.drawn[l] = 0;
  const uint4 none = {kUnwritten, kUnwritten, kUnwritten, kUnwritten};
  for (int64_t i = static_cast<int64_t>(blockIdx.x * kConsumers + threadIdx.x) * 16;
       i < a.exchange_bytes; i += static_cast<int64_t>(gridDim.x) * kConsumers * 16)
    put16(a.exchange + i, none);
}

template <typename Kind>
__global__ void __launch_bounds__(kThreads)
    fused_decode_kernel(const __grid_constant__ Args args,
                        const __grid_constant__ CUtensorMap contexts) {
  Shared<Kind>& shared = shared_memory<Kind>();
  copy_words(shared.args, args);
  copy_words(shared.layers[0], *args.layers);
  if (threadIdx.x == 0) {
    shared.unit = find_unit<Kind>(args);
    shared.ring.init();
    shared.handover.init();
    fence_barrier_init();
  }
  const int warp = static_cast<int>(threadIdx.x) / 32;
  if (warp < kWarps && threadIdx.x % 32 == 0)
    shared.joins[warp] =
        find_join<Kind>(args, static_cast<int>(blockIdx.x) +
                                  warp / warps_of_join(args) * static_cast<int>(gridDim.x));
  __syncthreads();
  if (Kind::kMixed && args.shape.delta.value_heads > 0) {  // what every layer reads, close at hand
    if (static_cast<int>(threadIdx.x) < args.tokens) {
      shared.slots[threadIdx.x] = args.batch.slots[threadIdx.x];
      shared.starts[threadIdx.x] = args.batch.starts[threadIdx.x];
    }
    if (threadIdx.x == 0) {
      shared.args.batch.slots = shared.slots;
      shared.args.batch.starts = shared.starts;
    }
    __syncthreads();
  }
  if (warp == kProducer) return produce<Kind>(contexts);
  if (warp == kFinisher) return finish<Kind>();
  consume<Kind>(shared);
  // The last block tells the next launch where it begins.
  if (threadIdx.x == 0 && atomicAdd(args.sync + kDone, 1u) == gridDim.x - 1) {
    args.sync[kDone] = 0;
    args.sync[kArrivalsBefore] += gridDim.x;
  }
}

int num_blocks() {
  int device = 0, sms = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device), "device attributes");
  return sms;
}
int in_row(const FusedShape& s) {
  return ((s.gated ? 2 : 1) * s.heads + 2 * s.kv_heads) * s.head_dim;
}
int delta_row(const FusedShape& s) {
  return s.delta.value_heads == 0 ? 0 : s.delta.qkvz_cols() + s.delta.ba_cols();
}
bool is_mixed(const FusedShape& s) {
  return s.head_dim == Qwen3NextKind::kHeadDim;
}
template <typename F>
auto with_kind(const FusedShape& s, F&& f) {
  return is_mixed(s) ? f(Qwen3NextKind()) : f(Qwen3Kind());
}

// Where the arrays of an Args lie in the exchange; `bytes`: of one layer's.
struct Exchange {
  int64_t in, partial, scores, mixed, mid, logits, activation, end, delta_in, squares, bytes;
  Exchange(const FusedShape& s, int blocks) {
    const int64_t T = kMaxTokens, rows = int64_t{blocks} * kMaxRows;
    int64_t at = 0;
    const auto place = [&](int64_t size) {
      const int64_t from = at;
      at += (size + 127) / 128 * 128;
      return from;
    };
    in = place(T * in_row(s) * 2);
    partial = place(rows * s.head_dim * 4);
    scores = place(rows * 8);
    mixed = place(T * s.heads * s.head_dim * 2);
    mid = place(T * kHidden * 2);
    logits = place(T * ((s.moe.experts + 7) / 8 * 8) * 4);
    activation = place(T * s.moe.top_k * s.moe.intermediate * 2);
    end = place(T * kHidden * 2);
    delta_in = place(T * delta_row(s) * 2);
    squares = place(T * s.delta.value_heads * kQuarters * 4);
    bytes = at;
  }
};

}  // namespace
}  // namespace fused

bool FusedDecode::takes(const FusedShape& s) {
  using namespace fused;
  const int width = s.heads * s.head_dim, rotary = s.rotary_dim ? s.rotary_dim : s.head_dim;
  const auto has_kind = [&](auto kind) {
    using Kind = decltype(kind);
    const int routed = s.moe.experts - (s.shared_expert ? 1 : 0);
    return s.head_dim == Kind::kHeadDim && rotary == Kind::kRotary && routed <= Kind::kMaxRouted &&
           s.gated == Kind::kMixed && s.moe.intermediate > 0 &&
           s.moe.intermediate <= kStageValues &&
           (Kind::kMixed || (!s.shared_expert && s.delta.value_heads == 0));
  };
  const GatedDeltaShape& d = s.delta;
  const bool takes_delta =
      d.value_heads == 0 || (d.head_dim == kDeltaDim && d.conv_width == kDeltaWidth &&
                             d.key_heads > 0 && d.value_heads % d.key_heads == 0 &&
                             d.value_heads * d.head_dim == width && d.ba_cols() % 8 == 0);
  return s.hidden == kHidden && with_kind(s, has_kind) && s.kv_heads > 0 &&
         s.heads % s.kv_heads == 0 && s.heads / s.kv_heads <= kMaxRows &&
         width % kChunkValues == 0 && width <= kOutSteps / 2 * kChunkValues && takes_delta &&
         s.moe.hidden == s.hidden && s.moe.intermediate % 64 == 0 &&
         s.moe.top_k > (s.shared_expert ? 1 : 0) && s.moe.top_k <= s.moe.experts &&
         s.moe.top_k * kMaxTokens <= kMaxPairs && num_blocks() * kRowsOfBlock >= kHidden &&
         num_blocks() * 8 <= kHidden;  // each block has rows of the residual
}

FusedDecode::FusedDecode(const FusedShape& shape, const std::vector<FusedLayer>& layers)
    : shape_(shape), blocks_(fused::num_blocks()), sync_(fused::kSyncWords) {
  VAMP_CHECK(takes(shape), "fused_decode: hidden {}, {} heads of {}, {} experts of {}",
             shape.hidden, shape.heads, shape.head_dim, shape.moe.experts, shape.moe.intermediate);
  const auto map = [](const void* weights, int rows, int cols, int matrices = 1,
                      size_t stride = size_t{1} << 32, int box = fused::kStageValues) {
    return bf16_wide_tensor_map(weights, cols, rows, matrices, stride, 8, std::min(cols, box));
  };
  const int H = shape.hidden, I = shape.moe.intermediate, E = shape.moe.experts;
  std::vector<Maps> maps;
  std::vector<Layer> own;
  uint32_t attention = 0, delta = 0;
  for (const FusedLayer& l : layers) {
    own.push_back({l, l.delta.conv ? delta++ : attention++});
    const bool has_delta = own.back().has_delta();
    VAMP_CHECK(!has_delta || shape.delta.value_heads > 0,
               "fused_decode: a layer with Gated DeltaNet in a model without");
    const int in_row = has_delta ? fused::delta_row(shape) : fused::in_row(shape);
    maps.push_back(
        {map(l.in, in_row, H), map(l.out, H, shape.heads * shape.head_dim), map(l.router, E, H),
         map(l.gate_up, 2 * I, H, E, shape.gate_up_stride),
         map(l.down, H, I, E, shape.down_stride, fused::units_of_copy(I) * fused::kUnitValues)});
  }
  layers_ = DeviceBuffer<Layer>(own);
  maps_ = DeviceBuffer<Maps>(maps);
  const fused::Exchange exchange(shape, blocks_);
  exchange_ = DeviceBuffer<char>(static_cast<size_t>(fused::kTurns * exchange.bytes));
  check(cudaMemset(exchange_.get(), 0xff, exchange_.size()), "clearing");
  check(cudaMemset(sync_.get(), 0, sync_.size() * sizeof(uint32_t)), "clearing");
  drawn_ = DeviceBuffer<uint32_t>(std::vector<uint32_t>(layers.size()));
  check(cudaDeviceSynchronize(), "clearing");  // whatever stream comes first
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
    to.first = reinterpret_cast<decltype(to.first)>(exchange_.get() + offset);
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
  args.delta_row = fused::delta_row(shape_);
  args.rows = shape_.heads / shape_.kv_heads;
  args.router_rows = (shape_.moe.experts + 7) / 8 * 8;
  args.out_width = shape_.heads * shape_.head_dim;
  args.blocks_inverse = static_cast<uint32_t>(
      ((uint64_t{1} << 32) + static_cast<uint64_t>(blocks_) - 1) / static_cast<uint64_t>(blocks_));
  args.residual = residual;
  args.sync = sync_.get();
  args.drawn = drawn_.get();
  place(args.in, exchange.in);
  place(args.partial, exchange.partial);
  place(args.scores, exchange.scores);
  place(args.mixed, exchange.mixed);
  place(args.mid, exchange.mid);
  place(args.logits, exchange.logits);
  place(args.activation, exchange.activation);
  place(args.end, exchange.end);
  place(args.delta_in, exchange.delta_in);
  place(args.squares, exchange.squares);
  args.exchange = exchange_.get();
  args.exchange_bytes = static_cast<int64_t>(exchange_.size());
  const auto launch = [&](auto kind) {
    using Kind = decltype(kind);
    // Keys or values of a page's tokens lie in the arena as rows of one matrix.
    const CUtensorMap contexts =
        bf16_wide_tensor_map(batch.cache.arena, Kind::kHeadDim, 1 << 30, 1, size_t{1} << 39,
                             Kind::kPageTokens, Kind::kHeadDim);
    const auto kernel = fused::fused_decode_kernel<Kind>;
    constexpr int kBytes = sizeof(fused::Shared<Kind>);
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
  };
  fused::with_kind(shape_, launch);
}

}  // namespace vamp::cuda
