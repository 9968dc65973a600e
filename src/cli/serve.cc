// `vamp serve MODEL`: the OpenAI-compatible server.
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <ostream>
#include <thread>

#include "cli/commands.h"
#include "cli/exit_deadline.h"
#include "cli/interrupt.h"
#include "cli/model_path.h"
#include "cli/serve_flags.h"
#include "events/kv_event_publisher.h"
#include "server/server.h"

namespace vamp {
namespace {

constexpr auto kSignalPoll = std::chrono::milliseconds(50);
constexpr auto kStopLimit = std::chrono::seconds(5);  // behind --drain-timeout

// What the pool can hold and the model was made for, unless --max-model-len says less.
int resolve_max_model_len(int asked, const ModelConfig& model, const MemoryLayout& layout) {
  const int capacity = static_cast<int>(std::min<int64_t>(
      int64_t{layout.max_blocks()} * layout.block_tokens, static_cast<int64_t>(kMostTokens)));
  if (asked == 0) return std::min(model.max_position_embeddings, capacity);
  if (asked > capacity) {
    throw Error(
        "--max-model-len {}: the KV pool holds at most {} tokens; lower it or give more memory",
        asked, capacity);
  }
  return asked;
}

SamplingDefaults sampling_defaults(const std::string& choice, const std::string& folder) {
  if (choice == "vllm") return {};
  return load_sampling_defaults(choice == "auto" ? folder : choice);
}

// Completions are served without a template: a broken one of the model's own is no reason to end.
void check_templates(TextService& text) {
  try {
    text.check_templates();
  } catch (const Error& error) {
    spdlog::warn("chats will be refused, --chat-template would help: {}", error.what());
  }
}

KvEventsConfig kv_events_config(const ServeFlags& flags) {
  KvEventsConfig config = parse_kv_events_config(flags.kv_events);
  if (config.enabled && !flags.engine.machine.scheduler.enable_prefix_caching) {
    throw Error(
        "--kv-events-config: without a prefix cache there are no events; leave it or "
        "--no-enable-prefix-caching out");
  }
  return config;
}

// Null when nobody asked for it.
std::unique_ptr<KvEventPublisher> make_publisher(const KvEventsConfig& config) {
  if (!config.enabled) return nullptr;
  auto publisher = std::make_unique<KvEventPublisher>(config);
  if (publisher->bound()) {
    spdlog::info("KV events on {}", publisher->endpoint());
  } else {
    spdlog::info(
        "KV events go to a collector at {}; to be connected to, as routers do, name a port of this "
        "machine: tcp://*:5557",
        publisher->endpoint());
  }
  if (!publisher->replay_endpoint().empty())
    spdlog::info("past KV events on {}", publisher->replay_endpoint());
  spdlog::warn("whoever can reach {} reads the tokens of every prompt", publisher->endpoint());
  return publisher;
}

ServingParts load_model(const ServeFlags& flags, const MachineSetup& setup,
                        const ModelConfig& config, const std::string& chat_template,
                        KvEventPublisher* publisher) {
  const auto start = std::chrono::steady_clock::now();
  ServingParts out;
  spdlog::info("reading the tokenizer of {}", setup.model);
  out.text = std::make_unique<TextService>(Tokenizer::load(setup.model), chat_template,
                                           flags.server.text_threads);
  check_templates(*out.text);
  spdlog::info("loading the weights for {}", describe_machine(setup));
  const PolicyTraits traits = policy_traits(flags.policy);
  Machine machine = make_machine(setup, config, traits);
  EngineParts& engine = out.engine;
  engine.policy = make_policy(flags.policy, machine.policies, *machine.layout);
  engine.config.scheduler = machine.scheduler;
  engine.config.staging = machine.staging;
  engine.config.inbox_capacity = 1 << 16;
  if (publisher != nullptr) {
    engine.config.scheduler.kv_events = true;
    out.listeners.push_back(publisher);
  }
  out.info.max_model_len =
      resolve_max_model_len(setup.scheduler.max_model_len, config, *machine.layout);
  engine.config.scheduler.max_model_len = out.info.max_model_len;
  engine.clock = std::move(machine.clock);
  engine.own_layout = std::move(machine.own_layout);
  engine.executor = std::move(machine.executor);
  engine.layout = machine.layout;
  out.info.root = flags.engine.machine.model;
  out.info.vocab_size = config.vocab_size;
  out.info.eos_token_ids = config.eos_token_ids;
  out.info.defaults = sampling_defaults(flags.generation_config, setup.model);
  out.info.policy = flags.policy;
  const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start;
  spdlog::info(
      "loaded in {:.1f} s: {} of KV cache for {} tokens, policy {}, at most {} tokens a request",
      spent.count(),
      format_bytes(static_cast<size_t>(engine.layout->base_blocks()) * engine.layout->block_bytes),
      int64_t{engine.layout->base_blocks()} * engine.layout->block_tokens, flags.policy,
      out.info.max_model_len);
  return out;
}

// Loading cannot be interrupted, and would hold its threads for minutes. It writes no file, and the
// kernel takes back all else.
[[noreturn]] void leave_while_loading() {
  spdlog::info("told to stop while the model is being loaded: it ends at once");
  spdlog::default_logger()->flush();
  std::_Exit(0);
}

void run_serve(ServeFlags flags, CommandContext& context) {
  MachineSetup& machine = flags.engine.machine;
  if (machine.executor == "sim" && machine.gpu.empty()) machine.gpu = "h200";
  policy_traits(flags.policy);  // names are checked first
  const char* key = std::getenv("VAMP_API_KEY");
  ServerOptions options = finish_server_flags(flags, key ? key : "");
  const KvEventsConfig events = kv_events_config(flags);
  MachineSetup setup = finish_engine_flags(flags.engine);
  setup.real_clock = true;
  setup.step_time = flags.sim_step_ms * 1e3;
  setup.model = find_model(machine.model, hub_cache()).string();
  const ModelConfig config = load_model_config(setup.model);

  const std::string chat_template = options.chat_template;
  InterruptWatch interrupt({SIGINT, SIGTERM});
  ExitDeadline deadline;
  const std::unique_ptr<KvEventPublisher> publisher = make_publisher(events);
  Server server(std::move(options),
                [&] { return load_model(flags, setup, config, chat_template, publisher.get()); });
  context.out << fmt::format("listening on port {}\n", server.port()) << std::flush;
  server.wait_until_loaded([&] { return interrupt.requested(); });
  const Service::State state = server.service().state();
  if (state == Service::State::kLoading) leave_while_loading();
  if (state == Service::State::kFailed) throw Error("{}", server.service().unready_reason());
  spdlog::info("ready: {} on port {}", server.service().options().served_names.front(),
               server.port());
  while (!interrupt.requested()) std::this_thread::sleep_for(kSignalPoll);
  spdlog::info("shutting down: {} s for requests under way", flags.server.drain_seconds);
  server.shut_down([] { return false; });
  deadline.arm(kStopLimit, "the engine");
}

}  // namespace

void add_serve_command(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<ServeFlags>();
  CLI::App* command =
      app.add_subcommand("serve", "Serve a model over HTTP, as OpenAI's API and vLLM's");
  add_serve_flags(*command, *flags);
  const auto print = [&context](const std::string& text) {
    context.out << text;
    throw CLI::Success();
  };
  // For docs/: not among the flags themselves.
  command->add_flag_callback("--flags-table", [print] { print(serve_flags_table()); })->group("");
  command->add_flag_callback("--metrics-table", [print] { print(Metrics::table()); })->group("");
  command->callback([flags, &context] { run_serve(*flags, context); });
}

}  // namespace vamp
