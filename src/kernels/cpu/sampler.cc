#include "kernels/cpu/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <unordered_set>

#include "base/random.h"

namespace vamp::cpu {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The lowest id with the greatest logit. No logit is NaN.
TokenId argmax(const KernelTable& kernels, const float* logits, int vocab) {
  constexpr int kChunk = 512;
  int best_chunk = 0;
  float best = -kInfinity;
  for (int i = 0; i < vocab; i += kChunk) {
    bool nan;
    const float max = kernels.max_logit(logits + i, std::min(kChunk, vocab - i), &nan);
    if (max > best) {
      best = max;
      best_chunk = i;
    }
  }
  TokenId token = best_chunk;
  while (logits[token] != best) ++token;
  return token;
}

// One row on its way through the steps.
class Row {
 public:
  Row(const KernelTable& kernels, float* logits, int vocab, const SampleParams& params)
      : kernels_(kernels), logits_(logits), vocab_(vocab), params_(params) {}

  Sample run() {
    Sample out;
    bool nan;
    const float max = kernels_.max_logit(logits_, vocab_, &nan);
    out.invalid = nan || !std::isfinite(max);
    if (out.invalid) return out;
    if (params_.logprobs >= 0) raw_.assign(logits_, logits_ + vocab_);
    add_bias();
    penalize();
    forbid();
    const float modified_max = kernels_.max_logit(logits_, vocab_, &nan);
    out.invalid = nan || !std::isfinite(modified_max);
    if (out.invalid) return out;
    out.token = params_.temperature <= 0 ? argmax(kernels_, logits_, vocab_) : pick(modified_max);
    if (params_.logprobs >= 0) add_logprobs(max, out);
    return out;
  }

 private:
  void add_bias() {
    for (const auto& [token, bias] : params_.logit_bias) {
      if (token >= 0 && token < vocab_) logits_[token] += bias;
    }
  }

  // As vLLM: repetition scales tokens of prompt and output once; presence and frequency are
  // subtracted for the output's tokens.
  void penalize() {
    if (params_.repetition_penalty != 1.0f) {
      std::unordered_set<TokenId> seen(params_.prompt.begin(), params_.prompt.end());
      seen.insert(params_.output.begin(), params_.output.end());
      for (const TokenId token : seen) {
        if (token < 0 || token >= vocab_) continue;
        float& x = logits_[token];
        x = x > 0 ? x / params_.repetition_penalty : x * params_.repetition_penalty;
      }
    }
    if (params_.presence_penalty == 0 && params_.frequency_penalty == 0) return;
    std::unordered_map<TokenId, int> counts;
    for (const TokenId token : params_.output) ++counts[token];
    for (const auto& [token, count] : counts) {
      if (token < 0 || token >= vocab_) continue;
      logits_[token] -=
          params_.presence_penalty + params_.frequency_penalty * static_cast<float>(count);
    }
  }

  void forbid() {
    if (params_.allowed.empty()) return;
    for (int word = 0; word * 32 < vocab_; ++word) {
      const uint32_t bits = params_.allowed[static_cast<size_t>(word)];
      if (bits == ~0u) continue;
      const int end = std::min(vocab_, word * 32 + 32);
      for (int token = word * 32; token < end; ++token) {
        if ((bits >> (token % 32) & 1) == 0) logits_[token] = -kInfinity;
      }
    }
  }

  // Temperature, min-p, top-k, top-p, then a draw by the inverse of the cumulated probability.
  TokenId pick(float max) {
    const float total =
        kernels_.exp_logits(logits_, vocab_, max, 1.0f / params_.temperature, logits_);
    const float* p = logits_;  // the best has 1
    const double u = draw(params_.seed, params_.counter);
    if (params_.min_p <= 0 && params_.top_k <= 0 && params_.top_p >= 1) {
      double left = u * static_cast<double>(total);
      TokenId last = 0;
      for (TokenId token = 0; token < vocab_; ++token) {
        if (p[token] == 0) continue;
        last = token;
        left -= static_cast<double>(p[token]);
        if (left < 0) return token;
      }
      return last;
    }
    std::vector<TokenId> ids = candidates(p);
    double sum = 0;
    for (const TokenId token : ids) sum += static_cast<double>(p[token]);
    double left = u * sum;
    for (const TokenId token : ids) {
      left -= static_cast<double>(p[token]);
      if (left < 0) return token;
    }
    return ids.back();
  }

  // What min-p, top-k and top-p leave, most probable first (by id where only min-p acts).
  std::vector<TokenId> candidates(const float* p) const {
    std::vector<TokenId> ids;
    for (TokenId token = 0; token < vocab_; ++token) {
      if (p[token] > 0 && p[token] >= params_.min_p) ids.push_back(token);
    }
    const auto better = [p](TokenId a, TokenId b) { return p[a] != p[b] ? p[a] > p[b] : a < b; };
    if (params_.top_k > 0 && static_cast<size_t>(params_.top_k) < ids.size()) {
      std::nth_element(ids.begin(), ids.begin() + params_.top_k, ids.end(), better);
      ids.resize(static_cast<size_t>(params_.top_k));
    }
    if (params_.top_p >= 1) {
      if (params_.top_k > 0) std::sort(ids.begin(), ids.end(), better);
      return ids;
    }
    std::sort(ids.begin(), ids.end());
    double sum = 0;
    for (const TokenId token : ids) sum += static_cast<double>(p[token]);
    // The head of the order usually suffices: sort that much, and more only when it does not.
    double kept = 0;
    size_t sorted = 0, count = 0;
    while (count < ids.size() && (count == 0 || kept < static_cast<double>(params_.top_p) * sum)) {
      if (count == sorted) {
        sorted = std::min(ids.size(), std::max<size_t>(256, sorted * 4));
        std::partial_sort(ids.begin() + static_cast<ptrdiff_t>(count),
                          ids.begin() + static_cast<ptrdiff_t>(sorted), ids.end(), better);
      }
      kept += static_cast<double>(p[ids[count++]]);
    }
    ids.resize(count);
    return ids;
  }

  void add_logprobs(float max, Sample& out) {
    const float total = kernels_.exp_logits(raw_.data(), vocab_, max, 1.0f, logits_);
    const float log_sum = max + std::log(total);
    out.logprob = raw_[static_cast<size_t>(out.token)] - log_sum;
    const int k = std::min(params_.logprobs, vocab_);
    if (k == 0) return;
    std::vector<TokenId> ids(static_cast<size_t>(vocab_));
    for (TokenId i = 0; i < vocab_; ++i) ids[static_cast<size_t>(i)] = i;
    const float* raw = raw_.data();
    std::partial_sort(ids.begin(), ids.begin() + k, ids.end(), [raw](TokenId a, TokenId b) {
      return raw[a] != raw[b] ? raw[a] > raw[b] : a < b;
    });
    for (int i = 0; i < k; ++i) {
      const TokenId token = ids[static_cast<size_t>(i)];
      out.top_logprobs.emplace_back(token, raw[token] - log_sum);
    }
  }

  const KernelTable& kernels_;
  float* logits_;
  int vocab_;
  const SampleParams& params_;
  std::vector<float> raw_;
};

}  // namespace

double draw(uint64_t seed, uint64_t counter) {
  return Random(Random(seed).next() ^ (counter * 0xD1342543DE82EF95ull)).uniform();
}

Sample sample_row(const KernelTable& kernels, float* logits, int vocab,
                  const SampleParams& params) {
  return Row(kernels, logits, vocab, params).run();
}

}  // namespace vamp::cpu
