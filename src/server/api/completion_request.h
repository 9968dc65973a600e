// The body of POST /v1/completions, read and tokenized.
#pragma once

#include <string>
#include <vector>

#include "server/api/openai_format.h"
#include "server/generation.h"
#include "server/service.h"

namespace vamp {

struct CompletionRequest {
  GenerationRequest generation;
  StreamOptions stream;
  bool echo = false;
  bool prompt_logprobs = false;           // asked for by that name, not by echo
  std::vector<std::string> prompt_texts;  // where prompts came as text, or echo asks for it

  const std::string& echo_text(size_t choice) const {
    return prompt_texts[choice / static_cast<size_t>(generation.n)];
  }
};

// On a text thread. Throws ApiError.
CompletionRequest prepare_completion(Service& service, const HttpRequest& http);

}  // namespace vamp
