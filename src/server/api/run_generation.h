// From an accepted request to the last byte of its answer; the same for every API.
#pragma once

#include <string>
#include <vector>

#include "server/api_error.h"
#include "server/generation.h"
#include "server/service.h"

namespace vamp {

// A whole choice, for answers that are not streamed.
struct ChoiceResult {
  MessageDelta message;  // tool calls put together
  std::vector<TokenLogprob> logprobs;
  std::vector<TokenLogprob> prompt_logprobs;  // of the first choice of each prompt
  std::vector<TokenId> token_ids;
};

// How an API writes an answer. The streamed form is server-sent events, appended to `out`.
class OutputFormat {
 public:
  virtual ~OutputFormat() = default;
  virtual const std::string& id() const = 0;  // of the answer
  virtual void begin(const Generation&, std::string& /*out*/) {}
  virtual void delta(size_t choice, const ChoiceDelta& delta, const Generation& generation,
                     std::string& out) = 0;
  virtual void end(const Generation& generation, std::string& out) = 0;
  virtual void error(const ApiError& error, std::string& out) = 0;
  virtual std::string whole(const std::vector<ChoiceResult>& choices,
                            const Generation& generation) = 0;
};

// Submits, streams or collects, and answers. A client that goes away ends it. Throws ApiError for
// what goes wrong before the first byte.
boost::asio::awaitable<void> run_generation(Service& service, const GenerationRequest& request,
                                            bool stream, OutputFormat& format,
                                            HttpExchange& exchange);

// Appends `delta` to what `message` has.
void append_message(const MessageDelta& delta, MessageDelta& message);

}  // namespace vamp
