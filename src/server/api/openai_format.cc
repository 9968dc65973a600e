#include "server/api/openai_format.h"

namespace vamp {

StreamOptions read_stream_options(const Fields& body) {
  StreamOptions options;
  options.stream = body.boolean("stream", false);
  const Json* value = body.find("stream_options");
  if (!value) return options;
  if (!options.stream) bad_field("stream_options", "only with stream: true");
  const Fields fields(*value, "stream_options");
  options.include_usage = fields.boolean("include_usage", false);
  options.continuous_usage =
      options.include_usage && fields.boolean("continuous_usage_stats", false);
  return options;
}

Json usage_json(const Generation& generation) {
  const int prompt = generation.prompt_tokens(), completion = generation.completion_tokens();
  return {{"prompt_tokens", prompt},
          {"total_tokens", prompt + completion},
          {"completion_tokens", completion},
          {"prompt_tokens_details", {{"cached_tokens", generation.cached_tokens()}}}};
}

void append_usage(const Generation& generation, std::string& out) {
  const int prompt = generation.prompt_tokens(), completion = generation.completion_tokens();
  fmt::format_to(std::back_inserter(out),
                 R"("usage":{{"prompt_tokens":{},"total_tokens":{},"completion_tokens":{},)"
                 R"("prompt_tokens_details":{{"cached_tokens":{}}}}})",
                 prompt, prompt + completion, completion, generation.cached_tokens());
}

void append_token_ids(const std::vector<TokenId>& ids, std::string& out) {
  if (ids.empty()) return;
  out += R"(,"token_ids":)";
  for (size_t i = 0; i < ids.size(); ++i) {
    out += i == 0 ? '[' : ',';
    out += std::to_string(ids[i]);
  }
  out += ']';
}

Json stop_reason_json(const ChoiceEnd& end) {
  if (const auto* token = std::get_if<TokenId>(&end.stop_reason)) return *token;
  if (const auto* text = std::get_if<std::string>(&end.stop_reason)) return *text;
  return nullptr;
}

Json token_json(const Tokenizer& tokenizer, TokenId token, float logprob) {
  const std::string& bytes = tokenizer.bytes(token);
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return {{"token", tokenizer.decode({&token, 1}, false)}, {"logprob", logprob}, {"bytes", list}};
}

}  // namespace vamp
