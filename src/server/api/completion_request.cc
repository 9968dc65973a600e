#include "server/api/completion_request.h"

#include "server/api/constraint.h"
#include "server/api/request_common.h"

namespace vamp {
namespace {

constexpr int kDefaultMaxTokens = 16;  // OpenAI's
std::vector<TokenId> read_ids(const Json& list) {
  std::vector<TokenId> ids;
  for (const Json& id : list) {
    const auto number = whole_number(id, 0, kMaxInt);
    if (!number) bad_field("prompt", "a list of token ids holds {}", dump(id).substr(0, 40));
    ids.push_back(static_cast<TokenId>(*number));
  }
  return ids;
}

// A string, a list of strings, a list of token ids, or a list of such lists.
void read_prompts(const Json* value, bool special, Service& service, CompletionRequest& out) {
  constexpr const char* kExpected = "expected a string, token ids, or a list of either";
  const auto add_text = [&](const std::string& text) {
    out.prompt_texts.push_back(text);
    out.generation.prompts.push_back(encode_prompt(service, text, special));
  };
  if (!value) throw ApiError(400, "prompt: missing", "prompt");
  if (value->is_string()) return add_text(value->get_ref<const std::string&>());
  if (!value->is_array() || value->empty()) bad_field("prompt", "{}", kExpected);
  if (value->front().is_number()) {
    out.generation.prompts.push_back(read_ids(*value));
    return;
  }
  const bool texts = value->front().is_string();
  for (const Json& prompt : *value) {
    if (texts && prompt.is_string()) {
      add_text(prompt.get_ref<const std::string&>());
    } else if (!texts && prompt.is_array()) {
      out.generation.prompts.push_back(read_ids(prompt));
    } else {
      bad_field("prompt", "{}", kExpected);
    }
  }
}

}  // namespace

CompletionRequest prepare_completion(Service& service, const HttpRequest& http) {
  const Json json = parse_body(http.body, service.options().max_json_depth);
  const Fields body(json);
  check_model(body, service);
  refuse_unsupported(body);
  if (body.find("suffix")) bad_field("suffix", "not supported");
  CompletionRequest out;
  out.stream = read_stream_options(body);
  read_sampling(body, service, out.generation);
  read_tenant(http, body, service, out.generation);
  out.echo = body.boolean("echo", false);
  const auto logprobs = body.integer("logprobs", -1, 0, service.options().max_logprobs);
  SamplingParams& sampling = out.generation.sampling;
  sampling.prompt_logprobs = read_prompt_logprobs(body, service, out.stream.stream);
  out.prompt_logprobs = sampling.prompt_logprobs >= 0;
  if (logprobs >= 0) {
    sampling.logprobs = static_cast<int>(logprobs);
    out.generation.choice.logprobs = true;
    if (out.echo && out.stream.stream)
      bad_field("logprobs", "those of an echoed prompt only without stream: true");
    if (out.echo) sampling.prompt_logprobs = std::max(sampling.prompt_logprobs, sampling.logprobs);
  }
  const auto best_of = body.integer("best_of", out.generation.n, 1, kMaxInt);
  if (best_of != out.generation.n) bad_field("best_of", "only the value of n is supported");

  read_prompts(body.find("prompt"), body.boolean("add_special_tokens", true), service, out);
  if (out.echo && out.prompt_texts.empty()) {
    for (const auto& prompt : out.generation.prompts)
      out.prompt_texts.push_back(service.text().tokenizer().decode(prompt));
  }
  std::optional<int> asked;
  if (body.find("max_tokens")) asked = static_cast<int>(body.integer("max_tokens", 0, 1, kMaxInt));
  const auto constraint = read_constraint(body);
  settle_lengths(service, asked, kDefaultMaxTokens, out.generation);
  if (constraint) apply_constraint(service, *constraint, out.generation);
  return out;
}

}  // namespace vamp
