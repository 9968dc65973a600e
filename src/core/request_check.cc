#include "core/request_check.h"

#include <fmt/format.h>

#include <cmath>
#include <span>

namespace vamp {
namespace {

using Refusal = std::optional<std::string>;

// vLLM's bounds and OpenAI's.
constexpr float kMaxPenalty = 2, kMaxLogitBias = 100;

std::string vocabulary(int vocab_size) {
  return vocab_size > 0
             ? fmt::format("the vocabulary has {} tokens, ids 0 to {}", vocab_size, vocab_size - 1)
             : "token ids are not negative";
}

bool known(TokenId token, int vocab_size) {
  return token >= 0 && (vocab_size <= 0 || token < vocab_size);
}

Refusal check_tokens(const char* field, std::span<const TokenId> tokens, int vocab_size) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (known(tokens[i], vocab_size)) continue;
    return fmt::format("{}: token id {} at position {} is out of range: {}", field, tokens[i], i,
                       vocabulary(vocab_size));
  }
  return std::nullopt;
}

// `inside` is false for NaN, whatever the bounds.
template <typename T>
Refusal check_range(const char* field, T value, bool inside, const char* allowed) {
  if (inside) return std::nullopt;
  return fmt::format("{} is {}; it must be {}", field, value, allowed);
}

Refusal check_sampling(const SamplingParams& p, const RequestLimits& limits) {
  const auto penalty = [](float value) { return std::abs(value) <= kMaxPenalty; };
  const Refusal checks[] = {
      check_range("max_tokens", p.max_tokens, p.max_tokens >= 1, "at least 1"),
      check_range("min_tokens", p.min_tokens, p.min_tokens >= 0 && p.min_tokens <= p.max_tokens,
                  "between 0 and max_tokens"),
      check_range("temperature", p.temperature, std::isfinite(p.temperature) && p.temperature >= 0,
                  "0 (greedy) or a positive number"),
      check_range("top_p", p.top_p, p.top_p > 0 && p.top_p <= 1, "above 0 and at most 1"),
      check_range("top_k", p.top_k, p.top_k >= 0, "0 (all tokens) or positive"),
      check_range("min_p", p.min_p, p.min_p >= 0 && p.min_p <= 1, "between 0 and 1"),
      check_range("repetition_penalty", p.repetition_penalty,
                  std::isfinite(p.repetition_penalty) && p.repetition_penalty > 0,
                  "a positive number"),
      check_range("presence_penalty", p.presence_penalty, penalty(p.presence_penalty),
                  "between -2 and 2"),
      check_range("frequency_penalty", p.frequency_penalty, penalty(p.frequency_penalty),
                  "between -2 and 2"),
      check_range("logprobs", p.logprobs, p.logprobs >= -1, "-1 (none), 0 or a number of tokens"),
      check_range("prompt_logprobs", p.prompt_logprobs, p.prompt_logprobs >= -1,
                  "-1 (none), 0 or a number of tokens"),
      check_tokens("stop_token_ids", p.stop_token_ids, limits.vocab_size),
  };
  for (const Refusal& refusal : checks) {
    if (refusal) return refusal;
  }
  const int most = limits.max_logprobs > 0 ? limits.max_logprobs : limits.vocab_size;
  for (const auto& [field, value] :
       {std::pair("logprobs", p.logprobs), std::pair("prompt_logprobs", p.prompt_logprobs)}) {
    if (most > 0 && value > most)
      return fmt::format("{} is {}; at most {} can be had", field, value, most);
  }
  for (const auto& [token, bias] : p.logit_bias) {
    if (auto refusal = check_tokens("logit_bias", {&token, 1}, limits.vocab_size)) return refusal;
    if (std::abs(bias) <= kMaxLogitBias) continue;
    return fmt::format("logit_bias of token {} is {}; it must be between -100 and 100", token,
                       bias);
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> validate_request(const RequestInput& request,
                                            const RequestLimits& limits) {
  if (request.prompt.empty()) return "the prompt is empty";
  if (auto refusal = check_tokens("prompt", request.prompt, limits.vocab_size)) return refusal;
  if (auto refusal = check_sampling(request.sampling, limits)) return refusal;
  if (!std::isfinite(request.arrival)) return "the arrival time is not a number";
  if (std::isnan(request.deadline)) return "the deadline is not a number";
  return std::nullopt;
}

}  // namespace vamp
