#include "server/service.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace vamp {

SamplingDefaults load_sampling_defaults(const std::string& folder) {
  SamplingDefaults defaults;
  const std::filesystem::path path = std::filesystem::path(folder) / "generation_config.json";
  if (!std::filesystem::exists(path)) return defaults;
  const auto json = nlohmann::json::parse(read_text_file(path), nullptr, false);
  if (!json.is_object()) throw Error("{}: not a JSON object", path.string());
  const auto read = [&](const char* key, auto& value) {
    const auto it = json.find(key);
    if (it == json.end() || it->is_null()) return;
    if (!it->is_number()) throw Error("{}: \"{}\" is not a number", path.string(), key);
    it->get_to(value);
  };
  read("temperature", defaults.temperature);
  read("top_p", defaults.top_p);
  read("top_k", defaults.top_k);
  read("min_p", defaults.min_p);
  read("repetition_penalty", defaults.repetition_penalty);
  read("max_new_tokens", defaults.max_tokens);
  return defaults;
}

Service::Service(ServerOptions options) : options_(std::move(options)), keys_(options_.api_keys) {}

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
