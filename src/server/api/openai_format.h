// What OpenAI's two text APIs share in their answers.
#pragma once

#include <string>
#include <vector>

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

// What chat and completions wrap their choices in; what a choice looks like is theirs.
class OpenAiFormat : public OutputFormat {
 public:
  const std::string& id() const final { return id_; }
  void end(const Generation& generation, std::string& out) final;
  void error(const ApiError& error, std::string& out) final;

 protected:
  OpenAiFormat(const StreamOptions& stream, std::string id, std::string model,
               const char* chunk_object);

  // data: {...,"choices":[{"index":0 and, behind what the choice has, the rest of the chunk.
  void open_chunk(size_t choice, std::string& out) const;
  void close_chunk(const ChoiceDelta& delta, const Generation& generation, std::string& out) const;
  // An answer that is not streamed, yet without choices.
  Json envelope(const char* object, const Generation& generation) const;

 private:
  const StreamOptions stream_;
  const std::string id_, model_;
  const int64_t created_;
  const std::string prefix_;  // of a chunk
};

// ,"finish_reason":...,"stop_reason":...
void append_finish(const std::string& reason, const ChoiceEnd& end, std::string& out);

// "stop_reason":... as vLLM has it.
Json stop_reason_json(const ChoiceEnd& end);

// As vLLM has it: null for the first token of the prompt, for each other what it and its best
// alternatives had, by id. Ranks are known among those alone.
Json prompt_logprobs_json(const Tokenizer& tokenizer, const std::vector<TokenLogprob>& tokens);

// The token as a client sees it: its text and bytes.
Json token_json(const Tokenizer& tokenizer, TokenId token, float logprob);

}  // namespace vamp
