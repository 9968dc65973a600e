#include "server/service.h"

#include <algorithm>
#include <filesystem>
#include <limits>

#include "base/error.h"
#include "base/file.h"
#include "model/json_fields.h"

namespace vamp {

SamplingDefaults load_sampling_defaults(const std::string& folder) {
  SamplingDefaults defaults;
  const std::filesystem::path path = std::filesystem::path(folder) / "generation_config.json";
  if (!std::filesystem::exists(path)) return defaults;
  const nlohmann::json json = parse_json_object(read_text_file(path), path.string());
  const JsonFields fields(json, path.string());
  const auto read = [&](const char* key, float& value, double low, double high) {
    value = static_cast<float>(fields.number_or(key, value, low, high));
  };
  constexpr int kMost = std::numeric_limits<int>::max();
  read("temperature", defaults.temperature, 0, 100);
  read("top_p", defaults.top_p, 0, 1);
  read("min_p", defaults.min_p, 0, 1);
  read("repetition_penalty", defaults.repetition_penalty, 1e-3, 100);
  defaults.top_k = std::max(0, fields.integer_or("top_k", 0, -1, kMost));
  defaults.max_tokens = fields.integer_or("max_new_tokens", 0, 0, kMost);
  return defaults;
}

Service::Service(ServerOptions options)
    : options_(std::move(options)),
      keys_(options_.api_keys),
      spans_(options_.otlp_traces_endpoint.empty()
                 ? nullptr
                 : std::make_unique<SpanExporter>(options_.otlp_traces_endpoint)) {}

std::string Service::unready_reason() const {
  const std::string engine = bridge_.failure();
  if (!engine.empty()) return engine;
  switch (state_.load()) {
    case State::kLoading:
      return "the model is being loaded";
    case State::kStopping:
      return "the server is shutting down";
    case State::kReady:
      return {};
    case State::kFailed:
      break;
  }
  const std::lock_guard lock(mutex_);
  return failure_;
}

void Service::start(ServedModel model, std::unique_ptr<TextService> text, EngineParts engine,
                    std::vector<EngineListener*> listeners) {
  model_ = std::move(model);
  text_ = std::move(text);
  metrics_.start({options_.served_names.front(), model_.max_model_len}, *engine.layout,
                 engine.config.scheduler, model_.policy);
  activity_.start(*engine.layout, engine.config.scheduler, engine.clock->now());
  listeners.push_back(&activity_);
  bridge_.start(std::move(engine), std::move(listeners));
  State loading = State::kLoading;
  state_.compare_exchange_strong(loading, State::kReady);
}

GrammarCompiler& Service::grammars() {
  std::call_once(grammars_made_, [this] {
    const Tokenizer& tokenizer = text_->tokenizer();
    if (static_cast<size_t>(model_.vocab_size) < tokenizer.id_count()) {
      throw Error(
          "output of this model cannot be constrained: its tokenizer has {} tokens, more than the "
          "{} of its vocabulary",
          tokenizer.id_count(), model_.vocab_size);
    }
    grammars_ = std::make_unique<GrammarCompiler>(tokenizer, model_.vocab_size,
                                                  model_.eos_token_ids, options_.grammar);
  });
  return *grammars_;
}

void Service::fail(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  failure_ = reason;
  state_ = State::kFailed;
}

void Service::stop_text() {
  if (text_) text_->join();
}

}  // namespace vamp
