#include "server/api/openai_format.h"

#include "server/api/request_common.h"

namespace vamp {
namespace {

Json usage_json(const Generation& generation) {
  const int prompt = generation.prompt_tokens(), completion = generation.completion_tokens();
  return {{"prompt_tokens", prompt},
          {"total_tokens", prompt + completion},
          {"completion_tokens", completion},
          {"prompt_tokens_details", {{"cached_tokens", generation.cached_tokens()}}}};
}

// "usage":{...}
void append_usage(const Generation& generation, std::string& out) {
  const int prompt = generation.prompt_tokens(), completion = generation.completion_tokens();
  fmt::format_to(std::back_inserter(out),
                 R"("usage":{{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{},)"
                 R"("prompt_tokens_details":{{"cached_tokens":{}}}}})",
                 prompt, prompt + completion, completion, generation.cached_tokens());
}

// ,"token_ids":[...] where there are any
void append_token_ids(const std::vector<TokenId>& ids, std::string& out) {
  if (ids.empty()) return;
  out += R"(,"token_ids":)";
  for (size_t i = 0; i < ids.size(); ++i) {
    out += i == 0 ? '[' : ',';
    out += std::to_string(ids[i]);
  }
  out += ']';
}

}  // namespace

StreamOptions read_stream_options(const Fields& body) {
  StreamOptions options;
  options.stream = body.boolean("stream", false);
  const Json* value = body.find("stream_options");
  if (!value) return options;
  if (!options.stream) bad_field("stream_options", "only with stream: true");
  const Fields fields(*value, "stream_options");
  options.include_usage = fields.boolean("include_usage", false);
  options.continuous_usage =
      fields.boolean("continuous_usage_stats", false) && options.include_usage;
  return options;
}

OpenAiFormat::OpenAiFormat(const StreamOptions& stream, std::string id, std::string model,
                           const char* chunk_object)
    : stream_(stream),
      id_(std::move(id)),
      model_(std::move(model)),
      created_(unix_time()),
      prefix_(fmt::format(R"(data: {{"id":"{}","object":"{}","created":{},"model":{},"choices":[)",
                          id_, chunk_object, created_, dump(Json(model_)))) {}

void OpenAiFormat::open_chunk(size_t choice, std::string& out) const {
  out += prefix_;
  fmt::format_to(std::back_inserter(out), R"({{"index":{})", choice);
}

void OpenAiFormat::close_chunk(const ChoiceDelta& delta, const Generation& generation,
                               std::string& out) const {
  append_token_ids(delta.token_ids, out);
  out += "}]";
  if (stream_.continuous_usage) {
    out += ',';
    append_usage(generation, out);
  }
  out += "}\n\n";
}

void OpenAiFormat::end(const Generation& generation, std::string& out) {
  if (stream_.include_usage) {
    out += prefix_ + "],";
    append_usage(generation, out);
    out += "}\n\n";
  }
  out += "data: [DONE]\n\n";
}

void OpenAiFormat::error(const ApiError& error, std::string& out) {
  out += "data: " + error.json() + "\n\ndata: [DONE]\n\n";
}

Json OpenAiFormat::envelope(const char* object, const Generation& generation) const {
  return {{"id", id_},       {"object", object},         {"created", created_},
          {"model", model_}, {"choices", Json::array()}, {"usage", usage_json(generation)}};
}

void append_finish(const std::string& reason, const ChoiceEnd& end, std::string& out) {
  fmt::format_to(std::back_inserter(out), R"(,"finish_reason":"{}","stop_reason":{})", reason,
                 dump(stop_reason_json(end)));
}

Json stop_reason_json(const ChoiceEnd& end) {
  if (const auto* token = std::get_if<TokenId>(&end.stop_reason)) return *token;
  if (const auto* text = std::get_if<std::string>(&end.stop_reason)) return *text;
  return nullptr;
}

Json prompt_logprobs_json(const Tokenizer& tokenizer, const std::vector<TokenLogprob>& tokens) {
  Json list = Json::array({nullptr});
  for (const TokenLogprob& token : tokens) {
    Json by_id = Json::object();
    const auto add = [&](TokenId id, float logprob, Json rank) {
      by_id[std::to_string(id)] = {{"logprob", logprob},
                                   {"rank", std::move(rank)},
                                   {"decoded_token", tokenizer.decode({&id, 1}, false)}};
    };
    add(token.token, token.logprob, nullptr);
    for (size_t i = 0; i < token.top.size(); ++i)
      add(token.top[i].first, token.top[i].second, i + 1);
    list.push_back(std::move(by_id));
  }
  return list;
}

Json token_json(const Tokenizer& tokenizer, TokenId token, float logprob) {
  const std::string& bytes = tokenizer.bytes(token);
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return {{"token", tokenizer.decode({&token, 1}, false)}, {"logprob", logprob}, {"bytes", list}};
}

}  // namespace vamp
