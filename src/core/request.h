// A request as the scheduler sees it: tokens in, tokens out, no text, no socket.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"
#include "core/token_grammar.h"

namespace vamp {

using RequestId = uint64_t;
using SessionId = uint64_t;  // 0: none given; the cache then uses the chain that the prompt extends
using RequestSlot = int32_t;  // a running request's row in the executor's tables

struct SamplingParams {
  int max_tokens = 16;
  int min_tokens = 0;
  bool ignore_eos = false;
  std::vector<TokenId> stop_token_ids;  // the scheduler adds the model's, unless ignore_eos
  float temperature = 0.0f;             // 0: greedy
  float top_p = 1.0f;
  int top_k = 0;  // 0: all
  float min_p = 0.0f;
  float repetition_penalty = 1.0f, presence_penalty = 0.0f, frequency_penalty = 0.0f;
  std::vector<std::pair<TokenId, float>> logit_bias;
  uint64_t seed = 0;
  std::shared_ptr<const TokenGrammar> grammar;  // null: free text
  int logprobs = -1;         // -1: none; 0: the sampled token's; k: also the k best
  int prompt_logprobs = -1;  // the same of the prompt's tokens but the first
};

// What applications tell about reuse: best effort, never trusted for memory.
struct ReuseHint {
  SessionId session = 0;
  std::optional<Micros> expected_gap;  // until the session's next turn
  bool release = false;                // the session is over after this request
};

struct RequestInput {
  RequestId id = 0;
  std::vector<TokenId> prompt;
  SamplingParams sampling;
  int priority = 0;         // lower runs first, as in vLLM; used by --scheduling-policy priority
  uint64_t cache_salt = 0;  // tenant: prefixes are shared only within one salt
  ReuseHint reuse;
  Micros arrival = 0;
  Micros deadline = std::numeric_limits<Micros>::infinity();  // dropped then, wherever it is
};

enum class FinishReason { kStop, kLength, kCancelled, kDeadline, kError };
const char* finish_reason_name(FinishReason reason);

// What the scheduler tells about a request after a step.
struct RequestEvent {
  enum class Kind { kToken, kPromptToken, kFinished };
  RequestId id = 0;
  Kind kind = Kind::kToken;
  TokenId token = 0;                                    // kToken, kPromptToken
  float logprob = 0;                                    // of it, when asked for
  std::vector<std::pair<TokenId, float>> top_logprobs;  // in its place, best first
  FinishReason reason = FinishReason::kStop;            // kFinished
  std::string error;                                    // kFinished with kError
};

// Figures of one request's life, complete once it has finished.
struct RequestStats {
  RequestId id = 0;
  SessionId session = 0;
  int prompt_tokens = 0;
  int cached_tokens = 0;       // of the prompt, found on the device at first admission
  int host_cached_tokens = 0;  // of the prompt, brought back from the host tier
  int output_tokens = 0;
  int preemptions = 0;
  Micros arrival = 0, first_scheduled = 0, first_token = 0, finished = 0;
  Micros queued = 0;  // arrival → first scheduled, plus every preempted stretch
  FinishReason reason = FinishReason::kStop;
};

}  // namespace vamp
