// What OpenAI's two text APIs share in their answers.
#pragma once

#include <string>

#include "server/api/fields.h"
#include "server/api/run_generation.h"

namespace vamp {

// stream, stream_options
struct StreamOptions {
  bool stream = false;
  bool include_usage = false;     // one more chunk at the end
  bool continuous_usage = false;  // in every chunk
};
StreamOptions read_stream_options(const Fields& body);

Json usage_json(const Generation& generation);
void append_usage(const Generation& generation, std::string& out);  // "usage":{...}

// ,"token_ids":[...] where there are any
void append_token_ids(const std::vector<TokenId>& ids, std::string& out);

// "stop_reason":... as vLLM has it.
Json stop_reason_json(const ChoiceEnd& end);

// The token as a client sees it: its text and bytes.
Json token_json(const Tokenizer& tokenizer, TokenId token, float logprob);

}  // namespace vamp
