// What every handler works with: the options, and, once it is loaded, the model.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>

#include "grammar/grammar_compiler.h"
#include "server/activity.h"
#include "server/auth.h"
#include "server/engine_bridge.h"
#include "server/metrics.h"
#include "server/server_options.h"
#include "server/span_exporter.h"
#include "server/text_service.h"

namespace vamp {

// First values of requests that do not say: generation_config.json's.
struct SamplingDefaults {
  float temperature = 1.0f, top_p = 1.0f, min_p = 0.0f, repetition_penalty = 1.0f;
  int top_k = 0;
  int max_tokens = 0;  // 0: none
};

// Reads generation_config.json of a model folder, where present. Throws Error.
SamplingDefaults load_sampling_defaults(const std::string& folder);

struct ServedModel {
  std::string root;  // as given on the command line
  int max_model_len = 0;
  int vocab_size = 0;
  std::vector<TokenId> eos_token_ids;
  SamplingDefaults defaults;
  std::string policy;
};

// Lives as long as the server. Handlers run on io threads; the model is set once, from the thread
// that loads it.
class Service {
 public:
  // Throws Error for options that cannot be.
  explicit Service(ServerOptions options);

  enum class State { kLoading, kReady, kFailed, kStopping };
  State state() const { return state_; }
  // Why it does not serve: for /health and refused requests. Empty when it does.
  std::string unready_reason() const;

  // Takes the model in and starts the engine: kReady.
  void start(ServedModel model, std::unique_ptr<TextService> text, EngineParts engine,
             std::vector<EngineListener*> listeners = {});
  void fail(const std::string& reason);
  void begin_stopping() { state_ = State::kStopping; }

  // Only when ready:
  const ServedModel& model() const { return model_; }
  TextService& text() { return *text_; }
  // Made when it is first asked for, which takes a moment: on a text thread. Throws Error.
  GrammarCompiler& grammars();

  const ServerOptions& options() const { return options_; }
  const KeyRing& keys() const { return keys_; }
  EngineBridge& bridge() { return bridge_; }
  Metrics& metrics() { return metrics_; }
  const Activity& activity() const { return activity_; }
  SpanExporter* spans() { return spans_.get(); }  // null: nobody asked for them

  void stop_engine() { bridge_.stop(); }
  // Once no handler runs any more.
  void stop_text();

 private:
  const ServerOptions options_;
  const KeyRing keys_;
  Metrics metrics_;
  Activity activity_;
  const std::unique_ptr<SpanExporter> spans_;
  EngineBridge bridge_{metrics_};
  std::unique_ptr<TextService> text_;
  ServedModel model_;
  std::once_flag grammars_made_;
  std::unique_ptr<GrammarCompiler> grammars_;
  std::atomic<State> state_ = State::kLoading;
  mutable std::mutex mutex_;
  std::string failure_;
};

}  // namespace vamp
