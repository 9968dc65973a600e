// A cluster of eight blocks a row, which holds the row in its shared memory and passes over it
// there. Every sum has a fixed order, so a row's token does not depend on the batch.
#include <algorithm>
#include <climits>

#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/sample_row.cuh"
#include "kernels/cuda/sample_row.h"

namespace vamp::cuda {
namespace {

using namespace sampling;

__device__ void load(Row& row, const float* logits) {
  for (int i = threadIdx.x; i < row.count(); i += kThreads) row.value(i) = logits[row.first() + i];
  __syncthreads();
}

// The row's greatest value; `invalid` when there is a NaN or none is finite.
__device__ float greatest(Row& row, bool* invalid) {
  double most = -INFINITY, nans = 0;
  row.each([&](float x, int) {
    if (isnan(x)) nans = 1;
    if (x > most) most = x;
  });
  most = row.max(nans > 0 ? static_cast<double>(INFINITY) : most);  // NaN counts as +inf: invalid
  *invalid = !isfinite(most);
  return static_cast<float>(most);
}

// Brings the n greatest values above `floor` to the first block's lists, in any order. n is at most
// kCandidates.
__device__ void gather_best(Row& row, Shared& shared, int n, float floor) {
  cg::cluster_group cluster = cg::this_cluster();
  if (threadIdx.x == 0) shared.top_count = 0;
  int above;
  const uint32_t v = row.nth_key(n, &above);  // and the counter is cleared before its syncs
  Shared& first = *cluster.map_shared_rank(&shared, 0);
  const auto take = [&](float x, int i) {
    if (!(x > floor)) return;
    const int place = atomicAdd(&first.top_count, 1);
    first.top_token[place] = row.first() + i;
    first.top_value[place] = x;
  };
  row.each([&](float x, int i) {
    if (key_of(x) > v) take(x, i);
  });
  row.each_tie(v, [&](float x, int i, double rank) {
    if (above + rank < n) take(x, i);
  });
  cluster.sync();
}

// Sorts the block's lists, best first, ties by id; what lies behind becomes 0.
__device__ void sort_best(Shared& shared) {
  for (int i = shared.top_count + static_cast<int>(threadIdx.x); i < kCandidates; i += kThreads) {
    shared.top_value[i] = -INFINITY;
    shared.top_token[i] = INT_MAX;
  }
  for (int size = 2; size <= kCandidates; size *= 2) {  // bitonic
    for (int step = size / 2; step > 0; step /= 2) {
      __syncthreads();
      const int i = static_cast<int>(threadIdx.x) / step * 2 * step + threadIdx.x % step;
      const int j = i + step;
      const float a = shared.top_value[i], b = shared.top_value[j];
      const int32_t s = shared.top_token[i], t = shared.top_token[j];
      const bool wrong = b > a || (b == a && t < s);
      if (wrong == ((i & size) == 0)) {
        shared.top_value[i] = b;
        shared.top_value[j] = a;
        shared.top_token[i] = t;
        shared.top_token[j] = s;
      }
    }
  }
  __syncthreads();
}
static_assert(kCandidates == 2 * kThreads);

__device__ void top_logprobs(Row& row, Shared& shared, int n, float log_sum, int32_t* tokens,
                             float* logprobs) {
  gather_best(row, shared, n, -INFINITY);
  cg::cluster_group cluster = cg::this_cluster();
  if (cluster.block_rank() == 0) {
    sort_best(shared);
    if (threadIdx.x < n) {
      const bool any = threadIdx.x < shared.top_count;
      tokens[threadIdx.x] = any ? shared.top_token[threadIdx.x] : -1;
      logprobs[threadIdx.x] = any ? shared.top_value[threadIdx.x] - log_sum : -INFINITY;
    }
  }
  cluster.sync();
}

__device__ void change(Row& row, const SampleBatch& batch, const RowParams& params) {
  for (int c = params.changes_begin + static_cast<int>(threadIdx.x); c < params.changes_end;
       c += kThreads) {
    const LogitChange change = batch.changes[c];
    const int i = change.token - row.first();
    if (i < 0 || i >= row.count()) continue;
    float x = row.value(i) + change.bias;
    if (change.repetition != 1.0f) x = x > 0 ? x / change.repetition : x * change.repetition;
    row.value(i) = x - change.subtract;
  }
  __syncthreads();
  if (params.mask < 0) return;
  const uint32_t* mask = batch.masks + static_cast<size_t>(params.mask) * ((batch.vocab + 31) / 32);
  row.each([&](float& x, int i) {
    const int token = row.first() + i;
    if (!(mask[token / 32] >> (token % 32) & 1)) x = -INFINITY;
  });
}

// The lowest token with the greatest value.
__device__ int best_token(Row& row, float most) {
  double token = 1e9;
  row.each([&](float x, int i) {
    if (x == most) token = fmin(token, static_cast<double>(row.first() + i));
  });
  return static_cast<int>(-row.max(-token));
}

// Of values p: all above the key v, and ties by id while keep(number of ties before) says so; the
// others become 0.
template <typename Keep>
__device__ void cut(Row& row, uint32_t v, const Keep& keep) {
  row.each([&](float& x, int) {
    if (key_of(x) < v) x = 0;
  });
  row.each_tie(v, [&](float& x, int, double rank) {
    if (!keep(rank)) x = 0;
  });
}

// The token at which the sum of values, in order of ids, passes random * (their sum).
__device__ int draw_by_id(Row& row, double random) {
  double mine = 0, total;
  int last = -1;
  row.each([&](float p, int i) {
    mine += static_cast<double>(p);
    if (p > 0) last = i;
  });
  const double before = row.exclusive(mine, &total), target = random * total;
  // Rounding may leave the target at the last sum: then it is the last token that has any.
  double token[2] = {-INFINITY, -INFINITY};  // minus the found one; the last one
  if (last >= 0 && before <= target) {
    token[1] = row.first() + last;
    double sum = before;
    row.each([&](float p, int i) {
      sum += static_cast<double>(p);
      if (isinf(token[0]) && sum > target) token[0] = -(row.first() + i);
    });
  }
  row.reduce(
      token, [](double a, double b) { return a > b ? a : b; }, -INFINITY);
  return static_cast<int>(isinf(token[0]) ? token[1] : -token[0]);
}

// The same in order of falling values, ties by id.
__device__ int draw_by_value(Row& row, double random) {
  double mine = 0;
  row.each([&](float p, int) { mine += static_cast<double>(p); });
  const double target = random * row.sum(mine);
  // First value at which the sum passes the target: sum of those above is at most it.
  double above;
  const uint32_t v = row.search(true, nextafter(target, INFINITY), &above);
  double token = -1, last = -1;
  row.each_tie(v, [&](float p, int i, double rank) {
    const double x = static_cast<double>(p);
    if (above + rank * x <= target && above + (rank + 1) * x > target) token = row.first() + i;
    last = row.first() + i;
  });
  double found[2] = {token, last};
  row.reduce(
      found, [](double a, double b) { return a > b ? a : b; }, -1.0);
  return static_cast<int>(found[0] >= 0 ? found[0] : found[1]);
}

// Of the sorted candidates (by the first block): top-p of `total`, then the draw. -1 when they are
// too few for it (`all`: there are no others).
__device__ int pick_sorted(Shared& shared, const RowParams& params, double total, bool all) {
  // Two candidates a thread; sums up to and with each.
  __shared__ double warp_sum[kWarps];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, i = 2 * static_cast<int>(threadIdx.x);
  const auto value = [&](int at) {
    return at < shared.top_count ? static_cast<double>(shared.top_value[at]) : 0.0;
  };
  double up = value(i) + value(i + 1);
  for (int offset = 1; offset < 32; offset <<= 1) {
    const double other = __shfl_up_sync(0xffffffffu, up, offset);
    if (lane >= offset) up += other;
  }
  if (lane == 31) warp_sum[warp] = up;
  __syncthreads();
  double before = 0, mass = 0;
  for (int w = 0; w < kWarps; ++w) {
    if (w < warp) before += warp_sum[w];
    mass += warp_sum[w];
  }
  const double second = before + up, first = second - value(i + 1);
  // The first candidate whose sum reaches (or passes) a target; the last one if none does.
  __shared__ int found;
  const auto find = [&](auto&& reaches) {
    __syncthreads();
    if (threadIdx.x == 0) found = shared.top_count - 1;
    __syncthreads();
    if (reaches(second)) atomicMin(&found, reaches(first) ? i : i + 1);
    __syncthreads();
    return min(found, shared.top_count - 1);
  };
  int last = shared.top_count - 1;
  if (params.top_p < 1) {
    const double target = static_cast<double>(params.top_p) * total;
    if (mass < target && !all) return -1;
    last = find([&](double sum) { return sum >= target; });
  }
  __shared__ double kept;
  if (i == last) kept = first;
  if (i + 1 == last) kept = second;
  __syncthreads();
  const double target = params.random * kept;
  return shared.top_token[min(last, find([&](double sum) { return sum > target; }))];
}

// top-k, top-p and the draw among the best kCandidates. -1: they do not suffice.
__device__ int pick_best(Row& row, Shared& shared, const RowParams& params) {
  const bool limited = params.top_k > 0;
  const int n = limited ? params.top_k : kCandidates;
  gather_best(row, shared, n, 0.0f);
  double mine = 0;
  row.each([&](float p, int) { mine += static_cast<double>(p); });
  double total = row.sum(mine);
  cg::cluster_group cluster = cg::this_cluster();
  if (cluster.block_rank() == 0) {
    sort_best(shared);
    if (limited) {  // top-p is of what top-k left
      total = 0;
      for (int i = 0; i < shared.top_count; ++i) total += static_cast<double>(shared.top_value[i]);
    }
    const int token = pick_sorted(shared, params, total, limited || shared.top_count < n);
    if (threadIdx.x < kBlocks) cluster.map_shared_rank(&shared, threadIdx.x)->picked = token;
  }
  cluster.sync();
  return shared.picked;
}

// Temperature, min-p, top-k, top-p, then the draw.
__device__ int pick(Row& row, Shared& shared, const RowParams& params, float most) {
  const float inverse = 1.0f / params.temperature;
  row.each([&](float& x, int) {
    x = expf((x - most) * inverse);
    if (x < params.min_p) x = 0;
  });
  if (params.top_k <= 0 && params.top_p >= 1) return draw_by_id(row, params.random);
  if (params.top_k <= kCandidates) {
    const int token = pick_best(row, shared, params);
    if (token >= 0) return token;
  }
  double above;
  if (params.top_k > 0) {
    const uint32_t v = row.search(false, params.top_k, &above);
    cut(row, v, [&](double rank) { return above + rank < params.top_k; });
  }
  if (params.top_p < 1) {
    double mine = 0;
    row.each([&](float p, int) { mine += static_cast<double>(p); });
    const double target = static_cast<double>(params.top_p) * row.sum(mine);
    const uint32_t v = row.search(true, target, &above);
    const double value =
        static_cast<double>(__uint_as_float(v & 0x80000000u ? v ^ 0x80000000u : 0u));
    cut(row, v, [&](double rank) { return above + rank * value < target; });
  }
  return draw_by_value(row, params.random);
}

__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kThreads)
    sample_kernel(SampleBatch batch, int share, int each) {
  extern __shared__ float values[];
  __shared__ Shared shared;
  cg::cluster_group cluster = cg::this_cluster();
  const int r = blockIdx.x / kBlocks, block = static_cast<int>(cluster.block_rank());
  const int first = block * share;
  Row row(shared, values, first, max(0, min(share, batch.vocab - first)), each);
  const bool writes = block == 0 && threadIdx.x == 0;
  const RowParams params = batch.params[r];
  const float* const logits = batch.logits + static_cast<size_t>(r) * batch.vocab;
  RowResult& result = batch.results[r];
  load(row, logits);
  bool invalid;
  float most = greatest(row, &invalid);
  float log_sum = 0;
  int num_top = 0;
  if (!invalid && params.logprobs >= 0) {
    double sum = 0;
    row.each([&](float x, int) { sum += static_cast<double>(expf(x - most)); });
    log_sum = most + static_cast<float>(log(row.sum(sum)));
    num_top = min(min(params.logprobs, batch.vocab), kMaxLogprobs);
    if (num_top > 0)
      top_logprobs(row, shared, num_top, log_sum,
                   batch.top_tokens + static_cast<size_t>(r) * kMaxLogprobs,
                   batch.top_logprobs + static_cast<size_t>(r) * kMaxLogprobs);
  }
  if (!invalid) {
    change(row, batch, params);
    most = greatest(row, &invalid);
  }
  int token = 0;
  if (!invalid)
    token = params.temperature <= 0 ? best_token(row, most) : pick(row, shared, params, most);
  if (writes) {
    result = {token, invalid, params.logprobs >= 0 && !invalid ? logits[token] - log_sum : 0.0f,
              invalid ? 0 : num_top};
  }
  cluster.sync();  // no block leaves while another may still write to it
}

}  // namespace

int sample_rows_max_vocab() {
  return static_cast<int>(kMaxRowBytes / sizeof(float)) * kBlocks / 2;
}

void sample_rows(const SampleBatch& batch, cudaStream_t stream) {
  VAMP_CHECK(batch.vocab >= 1 && batch.vocab <= sample_rows_max_vocab(), "sample: vocabulary of {}",
             batch.vocab);
  if (batch.rows == 0) return;
  const int share = (batch.vocab + kBlocks - 1) / kBlocks;
  const int each = ((share + kThreads - 1) / kThreads) | 1;
  const size_t bytes = static_cast<size_t>(share) * sizeof(float);
  check(cudaFuncSetAttribute(sample_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(kMaxRowBytes / 2)),
        "sample");
  sample_kernel<<<batch.rows * kBlocks, kThreads, bytes, stream>>>(batch, share, each);
  check_launch("sample");
}

}  // namespace vamp::cuda
