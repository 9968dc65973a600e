#include "kernels/cuda/sampler.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "kernels/cpu/sampler.h"
#include "kernels/cuda/cuda_check.h"
#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/sample_row.h"

namespace vamp::cuda {
namespace {

// The same number of elements pinned on the host and on the device; grows.
template <typename T>
class Mirror {
 public:
  ~Mirror() { cudaFreeHost(host_); }
  Mirror() = default;
  Mirror(const Mirror&) = delete;
  Mirror& operator=(const Mirror&) = delete;

  // Nothing on the stream may still use the old memory when it grows.
  void reserve(size_t count) {
    if (count <= device_.size()) return;
    const size_t grown = std::max(count, 2 * device_.size());
    check(cudaFreeHost(host_), "cudaFreeHost");
    host_ = nullptr;
    void* p = nullptr;
    check(cudaMallocHost(&p, grown * sizeof(T)), "pinning the sampler's buffers");
    host_ = static_cast<T*>(p);
    device_ = DeviceBuffer<T>(grown);
  }
  T* host() const { return host_; }
  T* device() const { return device_.get(); }
  void to_device(size_t count, cudaStream_t stream) {
    copy(device_.get(), host_, count, cudaMemcpyHostToDevice, stream);
  }
  void to_host(size_t count, cudaStream_t stream) {
    copy(host_, device_.get(), count, cudaMemcpyDeviceToHost, stream);
  }

 private:
  static void copy(T* to, const T* from, size_t count, cudaMemcpyKind kind, cudaStream_t stream) {
    if (count > 0) check(cudaMemcpyAsync(to, from, count * sizeof(T), kind, stream), "sampling");
  }
  T* host_ = nullptr;
  DeviceBuffer<T> device_;
};

// One entry for each token that bias or a penalty touches.
std::vector<LogitChange> changes_of(const SampleParams& p, int vocab) {
  std::unordered_map<TokenId, LogitChange> by_token;
  const auto change = [&](TokenId token) -> LogitChange* {
    if (token < 0 || token >= vocab) return nullptr;
    LogitChange& c = by_token[token];
    c.token = token;
    return &c;
  };
  for (const auto& [token, bias] : p.logit_bias) {
    if (LogitChange* c = change(token)) c->bias += bias;
  }
  if (p.repetition_penalty != 1.0f) {
    for (const auto list : {p.prompt, p.output}) {
      for (const TokenId token : list) {
        if (LogitChange* c = change(token)) c->repetition = p.repetition_penalty;
      }
    }
  }
  if (p.presence_penalty != 0 || p.frequency_penalty != 0) {
    std::unordered_map<TokenId, int> counts;
    for (const TokenId token : p.output) ++counts[token];
    for (const auto& [token, count] : counts) {
      if (LogitChange* c = change(token))
        c->subtract = p.presence_penalty + p.frequency_penalty * static_cast<float>(count);
    }
  }
  std::vector<LogitChange> changes;
  changes.reserve(by_token.size());
  for (const auto& [token, c] : by_token) changes.push_back(c);
  return changes;
}

}  // namespace

struct Sampler::Impl {
  int max_rows, vocab;
  Mirror<RowParams> params;
  Mirror<LogitChange> changes;
  Mirror<uint32_t> masks;
  Mirror<RowResult> results;
  Mirror<int32_t> top_tokens;
  Mirror<float> top_logprobs;
  cudaEvent_t done = nullptr;
  int rows = 0;

  size_t mask_words() const { return static_cast<size_t>((vocab + 31) / 32); }
  void wait() const { check(cudaEventSynchronize(done), "sampling"); }
};

Sampler::Sampler(int max_rows, int vocab)
    : impl_(new Impl{max_rows, vocab, {}, {}, {}, {}, {}, {}}) {
  VAMP_CHECK(max_rows >= 1 && vocab >= 1 && vocab <= sample_rows_max_vocab(),
             "sampler: {} rows, vocabulary of {}", max_rows, vocab);
  const auto rows = static_cast<size_t>(max_rows);
  impl_->params.reserve(rows);
  impl_->results.reserve(rows);
  impl_->top_tokens.reserve(rows * kMaxLogprobs);
  impl_->top_logprobs.reserve(rows * kMaxLogprobs);
  check(cudaEventCreateWithFlags(&impl_->done, cudaEventDisableTiming), "cudaEventCreate");
}
Sampler::~Sampler() {
  cudaEventSynchronize(impl_->done);
  cudaEventDestroy(impl_->done);
}

void Sampler::launch(const float* logits, std::span<const SampleParams> params,
                     std::span<const uint32_t* const> masks, cudaStream_t stream) {
  Impl& m = *impl_;
  VAMP_CHECK(params.size() <= static_cast<size_t>(m.max_rows) &&
                 (masks.empty() || masks.size() == params.size()),
             "sampler: {} rows, {} masks", params.size(), masks.size());
  m.wait();  // the pinned buffers are free
  m.rows = static_cast<int>(params.size());
  std::vector<LogitChange> changes;
  size_t num_masks = 0;
  bool logprobs = false;
  m.masks.reserve(static_cast<size_t>(std::count_if(masks.begin(), masks.end(),
                                                    [](const uint32_t* p) { return p; })) *
                  m.mask_words());
  for (size_t r = 0; r < params.size(); ++r) {
    const SampleParams& p = params[r];
    RowParams row{p.temperature,
                  p.top_p,
                  p.min_p,
                  p.top_k,
                  p.logprobs,
                  0,
                  0,
                  -1,
                  cpu::draw(p.seed, p.counter)};
    const std::vector<LogitChange> own = changes_of(p, m.vocab);
    row.changes_begin = static_cast<int32_t>(changes.size());
    changes.insert(changes.end(), own.begin(), own.end());
    row.changes_end = static_cast<int32_t>(changes.size());
    if (!masks.empty() && masks[r]) {
      row.mask = static_cast<int32_t>(num_masks);
      std::memcpy(m.masks.host() + num_masks++ * m.mask_words(), masks[r], m.mask_words() * 4);
    }
    logprobs |= p.logprobs > 0;
    m.params.host()[r] = row;
  }
  m.changes.reserve(changes.size());
  std::copy(changes.begin(), changes.end(), m.changes.host());
  m.params.to_device(params.size(), stream);
  m.changes.to_device(changes.size(), stream);
  m.masks.to_device(num_masks * m.mask_words(), stream);
  sample_rows({logits, m.rows, m.vocab, m.params.device(), m.changes.device(), m.masks.device(),
               m.results.device(), m.top_tokens.device(), m.top_logprobs.device()},
              stream);
  m.results.to_host(params.size(), stream);
  if (logprobs) {
    m.top_tokens.to_host(params.size() * kMaxLogprobs, stream);
    m.top_logprobs.to_host(params.size() * kMaxLogprobs, stream);
  }
  check(cudaEventRecord(m.done, stream), "sampling");
}

void Sampler::results(std::span<Sample> out) {
  const Impl& m = *impl_;
  VAMP_CHECK(out.size() == static_cast<size_t>(m.rows), "sampler: {} results of {} rows",
             out.size(), m.rows);
  m.wait();
  for (size_t r = 0; r < out.size(); ++r) {
    const RowResult& row = m.results.host()[r];
    out[r] = {row.token, row.logprob, {}, row.invalid != 0};
    for (int i = 0; i < row.num_top; ++i) {
      const size_t at = r * kMaxLogprobs + static_cast<size_t>(i);
      out[r].top_logprobs.emplace_back(m.top_tokens.host()[at], m.top_logprobs.host()[at]);
    }
  }
}

}  // namespace vamp::cuda
