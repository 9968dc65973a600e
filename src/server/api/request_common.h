// What the APIs' requests have in common.
#pragma once

#include <string>

#include "server/api/fields.h"
#include "server/generation.h"
#include "server/service.h"

namespace vamp {

// Throws ApiError 404 when the request names a model that is not served.
void check_model(const Fields& body, const Service& service);

// Throws ApiError 400 for what would change the answer and is not supported yet, naming the field:
// beam search and its like.
void refuse_unsupported(const Fields& body);

// A list of the model's token ids. Throws ApiError 400.
std::vector<TokenId> read_token_ids(const Json& list, const Service& service,
                                    const std::string& field);

// temperature, top_p, stop, seed, penalties, ... of OpenAI's and vLLM's bodies, with the model's
// defaults.
void read_sampling(const Fields& body, const Service& service, GenerationRequest& out);

// prompt_logprobs, for answers that are not streamed; -1 where it is not asked for.
int read_prompt_logprobs(const Fields& body, const Service& service, bool stream);

// X-Session-ID, prompt_cache_key, agent_hint, cache_salt, priority: session and tenant.
void read_tenant(const HttpRequest& http, const Fields& body, const Service& service,
                 GenerationRequest& out);

// The id of a response: the client's X-Request-Id, or a new one, behind the API's prefix.
std::string response_id(const char* prefix, const HttpRequest& http);
std::string random_hex(int bytes);

// The prompt's tokens. A text far beyond what the model takes is refused by its length, without the
// work. On a text thread. Throws ApiError.
std::vector<TokenId> encode_prompt(Service& service, std::string_view text,
                                   bool add_special_tokens);

// Once the prompts are known: the longest answer that fits, unless `asked` says how long, and
// everything the engine would refuse. Throws ApiError.
void settle_lengths(const Service& service, std::optional<int> asked, int fallback,
                    GenerationRequest& out);

// The model's name in responses.
const std::string& shown_model(const Service& service);
int64_t unix_time();

}  // namespace vamp
