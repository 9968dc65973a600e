#include "server/api/request_common.h"

#include <openssl/rand.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <limits>

namespace vamp {
namespace {

constexpr float kLeastTemperature = 1e-2f;  // below it logits overflow: greedy, as vLLM does
constexpr size_t kMaxLogitBias = 1024;
constexpr size_t kMaxClientId = 128;

void read_logit_bias(const Fields& body, int vocab_size, SamplingParams& sampling) {
  const Json* value = body.find("logit_bias");
  if (!value) return;
  if (!value->is_object()) bad_field("logit_bias", "expected an object of token ids to numbers");
  if (value->size() > kMaxLogitBias) bad_field("logit_bias", "more than {} tokens", kMaxLogitBias);
  for (const auto& [key, bias] : value->items()) {
    int id = -1;
    const auto read = std::from_chars(key.data(), key.data() + key.size(), id);
    if (read.ec != std::errc() || read.ptr != key.data() + key.size() || id < 0 || id >= vocab_size)
      bad_field("logit_bias", "{} is not a token id below {}", dump(Json(key)), vocab_size);
    if (!bias.is_number()) bad_field("logit_bias", "the bias of token {} is not a number", id);
    const float number = bias.get<float>();
    if (!(number >= -100 && number <= 100))
      bad_field("logit_bias", "the bias of token {} is not from -100 to 100", id);
    sampling.logit_bias.emplace_back(static_cast<TokenId>(id), number);
  }
}

void read_stops(const Fields& body, const Service& service, GenerationRequest& out) {
  SamplingParams& sampling = out.sampling;
  out.choice.detokenizer.stop = body.strings("stop");
  if (out.choice.detokenizer.stop.size() > static_cast<size_t>(service.options().max_stop_strings))
    bad_field("stop", "more than {} strings", service.options().max_stop_strings);
  std::erase(out.choice.detokenizer.stop, "");
  sampling.ignore_eos = body.boolean("ignore_eos", false);
  if (const Json* ids = body.find("stop_token_ids"))
    sampling.stop_token_ids = read_token_ids(*ids, service, "stop_token_ids");
  out.choice.stop_token_ids = sampling.stop_token_ids;
  if (!sampling.ignore_eos) {
    const auto& eos = service.model().eos_token_ids;
    out.choice.stop_token_ids.insert(out.choice.stop_token_ids.end(), eos.begin(), eos.end());
  }
  out.choice.detokenizer.include_stop_in_output = body.boolean("include_stop_str_in_output", false);
  out.choice.detokenizer.skip_special_tokens = body.boolean("skip_special_tokens", true);
}

SessionId session_of(const std::string& name, uint64_t tenant) {
  const std::string salt = std::to_string(tenant);
  // The highest bit is the scheduler's own.
  return (first_bytes(sha256({"session", salt, name})) >> 1) | 1;
}

bool plain(const std::string& id) {
  return !id.empty() && id.size() <= kMaxClientId &&
         std::all_of(id.begin(), id.end(), [](unsigned char c) {
           return std::isalnum(c) || c == '-' || c == '_' || c == '.';
         });
}

}  // namespace

void check_model(const Fields& body, const Service& service) {
  const std::string model = body.string("model");
  const auto& names = service.options().served_names;
  if (model.empty() || std::find(names.begin(), names.end(), model) != names.end()) return;
  throw ApiError(
      404, fmt::format("the model {} is not served here; {} is", dump(Json(model)), names.front()),
      "model");
}

void refuse_unsupported(const Fields& body) {
  for (const char* field :
       {"bad_words", "allowed_token_ids", "prompt_embeds", "truncate_prompt_tokens"}) {
    if (body.find(field)) bad_field(field, "not supported yet");
  }
  if (body.boolean("use_beam_search", false)) bad_field("use_beam_search", "not supported");
}

std::vector<TokenId> read_token_ids(const Json& list, const Service& service,
                                    const std::string& field) {
  if (!list.is_array()) bad_field(field, "expected a list of token ids");
  std::vector<TokenId> ids;
  for (const Json& id : list) {
    const auto number = whole_number(id, 0, service.model().vocab_size - 1);
    if (!number) bad_field(field, "expected token ids below {}", service.model().vocab_size);
    ids.push_back(static_cast<TokenId>(*number));
  }
  return ids;
}

void read_sampling(const Fields& body, const Service& service, GenerationRequest& out) {
  const SamplingDefaults& defaults = service.model().defaults;
  SamplingParams& sampling = out.sampling;
  sampling.temperature =
      static_cast<float>(body.number("temperature", defaults.temperature, 0, 100));
  if (sampling.temperature < kLeastTemperature) sampling.temperature = 0;
  sampling.top_p = static_cast<float>(body.number("top_p", defaults.top_p, 0, 1));
  if (sampling.top_p == 0) bad_field("top_p", "expected a number above 0");
  sampling.top_k =
      static_cast<int>(std::max<int64_t>(0, body.integer("top_k", defaults.top_k, -1, kMaxInt)));
  sampling.min_p = static_cast<float>(body.number("min_p", defaults.min_p, 0, 1));
  sampling.repetition_penalty =
      static_cast<float>(body.number("repetition_penalty", defaults.repetition_penalty, 1e-3, 100));
  sampling.presence_penalty = static_cast<float>(body.number("presence_penalty", 0, -2, 2));
  sampling.frequency_penalty = static_cast<float>(body.number("frequency_penalty", 0, -2, 2));
  sampling.min_tokens = static_cast<int>(body.integer("min_tokens", 0, 0, kMaxInt));
  out.choice.min_tokens = sampling.min_tokens;
  read_logit_bias(body, service.model().vocab_size, sampling);
  read_stops(body, service, out);

  out.n = static_cast<int>(body.integer("n", 1, 1, service.options().max_choices));
  if (body.find("seed")) {
    sampling.seed = static_cast<uint64_t>(body.integer(
        "seed", 0, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()));
  } else {
    RAND_bytes(reinterpret_cast<unsigned char*>(&sampling.seed), sizeof sampling.seed);
  }
  out.choice.token_ids = body.boolean("return_token_ids", false);
}

int read_prompt_logprobs(const Fields& body, const Service& service, bool stream) {
  if (!body.find("prompt_logprobs")) return -1;
  if (stream) bad_field("prompt_logprobs", "only without stream: true");
  return static_cast<int>(body.integer("prompt_logprobs", 0, 0, service.options().max_logprobs));
}

void read_tenant(const HttpRequest& http, const Fields& body, const Service& service,
                 GenerationRequest& out) {
  const KeyRing& keys = service.keys();
  out.cache_salt = keys.cache_salt(http, body.string("cache_salt"));
  out.trace = http.trace;
  out.priority = static_cast<int>(body.integer("priority", 0, -kMaxInt, kMaxInt));
  std::string session = body.string("prompt_cache_key");
  if (const std::string* header = http.header("x-session-id"); header && !header->empty())
    session = *header;
  body.string("prompt_cache_retention");  // how long to keep is not when it comes: checked, no more
  if (const Json* hint = body.find("agent_hint"); hint && hint->is_object()) {
    const Fields fields(*hint, "agent_hint");
    session = fields.string("session", session);
    out.reuse.release = fields.boolean("release", false);
    const double gap = fields.number("expected_gap", -1, -1, 1e9);
    if (gap >= 0) out.reuse.expected_gap = gap * kSecond;
  }
  if (!session.empty()) out.reuse.session = session_of(session, keys.cache_salt(http, ""));
}

std::string random_hex(int bytes) {
  std::vector<unsigned char> raw(static_cast<size_t>(bytes));
  RAND_bytes(raw.data(), bytes);
  std::string text;
  for (const unsigned char byte : raw) fmt::format_to(std::back_inserter(text), "{:02x}", byte);
  return text;
}

std::string response_id(const char* prefix, const HttpRequest& http) {
  const std::string* given = http.header("x-request-id");
  return fmt::format("{}{}", prefix, given && plain(*given) ? *given : random_hex(16));
}

std::vector<TokenId> encode_prompt(Service& service, std::string_view text,
                                   bool add_special_tokens) {
  const int limit = service.model().max_model_len;
  auto tokens = service.text().tokenizer().encode_unless_longer(text, add_special_tokens,
                                                                static_cast<size_t>(limit));
  if (!tokens) {
    throw ApiError(400,
                   fmt::format("This model's maximum context length is {} tokens. However, your "
                               "prompt of {} bytes has far more: shorten it.",
                               limit, text.size()),
                   "prompt");
  }
  return std::move(*tokens);
}

void settle_lengths(const Service& service, std::optional<int> asked, int fallback,
                    GenerationRequest& out) {
  const int limit = service.model().max_model_len;
  if (out.prompts.size() * static_cast<size_t>(out.n) >
      static_cast<size_t>(service.options().max_choices)) {
    throw ApiError(
        400,
        fmt::format("{} prompts times n={} exceed the {} choices that one request may have",
                    out.prompts.size(), out.n, service.options().max_choices),
        "n");
  }
  int longest = 0;
  for (const auto& prompt : out.prompts) {
    if (prompt.empty()) throw ApiError(400, "the prompt is empty", "prompt");
    longest = std::max(longest, static_cast<int>(prompt.size()));
    for (const TokenId id : prompt) {
      if (id < 0 || id >= service.model().vocab_size)
        throw ApiError(400,
                       fmt::format("the prompt holds token id {}; the model's are below {}", id,
                                   service.model().vocab_size),
                       "prompt");
    }
  }
  if (longest >= limit) {
    throw ApiError(400,
                   fmt::format("This model's maximum context length is {} tokens. However, your "
                               "prompt has {} tokens: shorten it.",
                               limit, longest),
                   "prompt");
  }
  const int room = limit - longest;
  if (asked && *asked > room) {
    throw ApiError(
        400,
        fmt::format("This model's maximum context length is {} tokens. However, you asked "
                    "for {} tokens behind a prompt of {}: shorten the prompt, or ask for "
                    "{} at most.",
                    limit, *asked, longest, room),
        "max_tokens");
  }
  out.sampling.max_tokens = asked ? *asked : std::min(room, fallback > 0 ? fallback : room);
  if (out.sampling.min_tokens > out.sampling.max_tokens)
    bad_field("min_tokens", "{} exceeds max_tokens, {}", out.sampling.min_tokens,
              out.sampling.max_tokens);
}

const std::string& shown_model(const Service& service) {
  return service.options().served_names.front();
}

int64_t unix_time() {
  return static_cast<int64_t>(std::time(nullptr));
}

}  // namespace vamp
