#include "cli/replay_runs.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <ostream>
#include <set>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/interrupt.h"
#include "cli/progress_line.h"
#include "replay/http_target.h"
#include "report/atomic_files.h"
#include "report/page.h"
#include "report/table.h"
#include "text/chat_renderer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_config.h"

namespace vamp {
namespace {

template <typename Number>
Number sweep_number(const std::string& key, const std::string& value, Number low, Number high) {
  Number number{};
  const char* end = value.data() + value.size();
  const auto [stop, fault] = std::from_chars(value.data(), end, number);
  if (fault != std::errc() || stop != end || !(number >= low && number <= high)) {
    throw Error("--trace sweep: {}={} is not a number from {} to {}", key, value, low, high);
  }
  return number;
}

// "sweep:sessions=16,kv=0.85GiB,turns=12,output=128,first=0.4"
SweepOptions parse_sweep(std::string_view text, size_t kv_bytes_per_token) {
  SweepOptions sweep;
  sweep.kv_bytes_per_token = kv_bytes_per_token;
  text.remove_prefix(std::string_view("sweep:").size());
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    const std::string part(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
    const size_t equals = std::min(part.find('='), part.size());
    const std::string key = part.substr(0, equals);
    const std::string value = equals < part.size() ? part.substr(equals + 1) : "";
    if (key == "sessions") {
      sweep.sessions = sweep_number(key, value, 1, 100'000);
    } else if (key == "turns") {
      sweep.turns = sweep_number(key, value, 2, 10'000);
    } else if (key == "output") {
      sweep.output_tokens = sweep_number(key, value, 1, 1 << 20);
    } else if (key == "first") {
      sweep.first_share = sweep_number(key, value, 0.0, 1.0);
    } else if (key == "kv") {
      sweep.kv_bytes_per_session = memory_flag("--trace sweep: kv", value);
    } else {
      throw Error("--trace sweep: \"{}\" is unknown; use sessions, kv, turns, output, first", key);
    }
  }
  if (sweep.kv_bytes_per_session == 0)
    throw Error("--trace sweep: give kv=BYTES, a session's KV at its end");
  return sweep;
}

bool is_sweep(const std::string& trace) {
  return trace.starts_with("sweep:");
}

// The markup of the model's own chat template; ChatML where it has none.
std::shared_ptr<ChatMarkup> model_markup(const std::string& folder) {
  const auto config = std::make_shared<TokenizerConfig>(load_tokenizer_config(folder));
  const auto renderer = std::make_shared<ChatRenderer>();
  return std::make_shared<ChatMarkup>([=](const std::vector<ChatMessage>& messages, bool generate) {
    ChatPrompt prompt;
    prompt.chat_template = choose_chat_template(*config, false);
    prompt.messages = ChatJson::array();
    for (const ChatMessage& message : messages) {
      prompt.messages.push_back({{"role", message.role}, {"content", message.content}});
    }
    prompt.variables = special_token_variables(*config);
    prompt.add_generation_prompt = generate;
    return renderer->render(prompt);
  });
}

Trace load_trace(const ReplaySetup& setup, size_t kv_bytes_per_token,
                 const std::shared_ptr<ChatMarkup>& markup) {
  TraceReadOptions options = setup.trace_read;
  options.markup = markup;
  Trace trace = is_sweep(setup.trace) ? make_sweep(parse_sweep(setup.trace, kv_bytes_per_token))
                                      : read_trace(setup.trace, options);
  select_sessions(trace, setup.selection);
  if (setup.token_scale != 1) scale_tokens(trace, setup.token_scale);
  return trace;
}

std::vector<std::pair<std::string, std::string>> run_settings(const std::string& policy,
                                                              const Machine& machine) {
  const PolicyTraits traits = policy_traits(policy);
  const SchedulerConfig& scheduler = machine.scheduler;
  const MemoryLayout& layout = *machine.layout;
  return {{"boundary", !traits.moves_boundary    ? "fixed"
                       : traits.two_way_boundary ? "two-way"
                                                 : "one-way"},
          {"staging", machine.staging == StagingMode::kWholeRegion ? "whole region"
                      : machine.staging == StagingMode::kActivated ? "activated experts"
                                                                   : "the cheaper"},
          {"host tier",
           scheduler.host_blocks > 0
               ? format_bytes(static_cast<size_t>(scheduler.host_blocks) * layout.block_bytes)
               : "none"},
          {"KV pool at the start",
           fmt::format("{} tokens", int64_t{layout.base_blocks()} * layout.block_tokens)},
          {"KV pool at most",
           fmt::format("{} tokens", int64_t{layout.max_blocks()} * layout.block_tokens)}};
}

// Ctrl-C before a run has begun.
struct LoadingInterrupted {};

// What every run of a report shares.
struct Workload {
  const ReplaySetup& setup;
  const ModelConfig& model;
  const Trace& trace;
  const PromptBuilder& prompts;
  const PromptBuilder::Encode& encode;  // may be null
  InterruptWatch& interrupt;
  std::ostream& err;
};

void watch(ReplayDriver& driver, ProgressLine& line, InterruptWatch& interrupt) {
  driver.on_progress = [&line](const ReplayProgress& progress) { line.update(progress); };
  driver.stop_requested = [&interrupt] { return interrupt.requested(); };
}

ReplayResult run_policy(const Workload& work, const std::string& policy) {
  Machine machine = make_machine(work.setup.machine, work.model, policy_traits(policy),
                                 [&work](const std::string&, size_t, size_t) {
                                   if (work.interrupt.requested()) throw LoadingInterrupted();
                                 });
  EngineConfig config;
  config.scheduler = machine.scheduler;
  config.staging = machine.staging;
  config.inbox_capacity = work.trace.sessions.size() + 16;
  ReplayDriver driver(work.trace, work.prompts, work.setup.replay);
  ProgressLine line(work.err, policy, true);
  watch(driver, line, work.interrupt);
  Engine engine(config, *machine.layout, make_policy(policy, machine.policies, *machine.layout),
                *machine.executor, *machine.clock, driver);
  EngineTarget target(engine, *machine.clock);
  ReplayResult result = driver.run(target, *machine.clock);
  result.record.policy = policy;
  result.record.settings = run_settings(policy, machine);
  result.record.memory = memory_facts(*machine.layout);
  return result;
}

ReplayResult run_server(const Workload& work, const RemoteServer& server, ReportRecord& report) {
  RealClock clock;
  ReplayDriver driver(work.trace, work.prompts, work.setup.replay);
  ProgressLine line(work.err, server.url.name, false);
  watch(driver, line, work.interrupt);
  HttpTarget target(server, work.encode, clock, driver);
  ReplayResult result = driver.run(target, clock);
  result.record.policy = server.url.name;
  result.record.settings = {{"server", server.url.text}, {"model", server.model}};
  result.record.from_client = true;
  result.record.cached_known = target.cached_tokens_told();
  const auto& turns = result.record.turns;
  const bool answered = std::any_of(turns.begin(), turns.end(),
                                    [](const TurnRecord& turn) { return turn.answered(); });
  if (answered && !result.record.cached_known)
    report.notes.push_back(
        fmt::format("{}: no answer says how much of its prompt was cached (vLLM does with "
                    "--enable-prompt-tokens-details)",
                    server.url.name));
  return result;
}

double mean_think_s(const Trace& trace, const ReplayOptions& options) {
  if (options.think_time >= 0) return options.think_time / kSecond;
  double sum = 0;
  size_t gaps = 0;
  for (const TraceSession& session : trace.sessions) {
    for (size_t t = 1; t < session.turns.size(); ++t, ++gaps) {
      sum += std::min(session.turns[t].think * options.think_scale, options.think_cap);
    }
  }
  return gaps > 0 ? sum / static_cast<double>(gaps) / kSecond : 0;
}

void add_engine_settings(const MachineSetup& machine, ReportRecord& report) {
  const SchedulerConfig& scheduler = machine.scheduler;
  report.settings.emplace_back("VAMP-r", fmt::format("{:g}%", machine.max_offload_percent));
  report.settings.emplace_back("running at most", fmt::format("{}", scheduler.max_num_seqs));
  report.settings.emplace_back("tokens a step",
                               fmt::format("{}", scheduler.max_num_batched_tokens));
  report.settings.emplace_back("admission", scheduler.admission == AdmissionRule::kWholePrompt
                                                ? "whole prompt"
                                                : "first chunk");
}

ReportRecord make_report(const ReplaySetup& setup, const Trace& trace) {
  ReportRecord report;
  const auto base = [](const std::string& path) {
    return std::filesystem::path(path).lexically_normal().filename().string();
  };
  report.title = fmt::format("{} · {}", base(setup.machine.model),
                             is_sweep(setup.trace) ? setup.trace : base(setup.trace));
  const ReplayOptions& replay = setup.replay;
  report.settings = {
      {"on", setup.urls.empty() ? describe_machine(setup.machine) : "servers, over HTTP"},
      {"sessions",
       fmt::format("{}{}", trace.sessions.size(),
                   replay.sessions > 0 ? fmt::format(", {} at once", replay.sessions) : "")},
      {"turns", fmt::format("{}", trace.num_turns())},
      {"think time", fmt::format("mean {:.2f} s", mean_think_s(trace, replay))},
      {"seed", fmt::format("{}", replay.seed)}};
  if (setup.urls.empty()) add_engine_settings(setup.machine, report);
  if (setup.token_scale != 1)
    report.settings.emplace_back("token scale", fmt::format("{:g}", setup.token_scale));
  return report;
}

void compare_runs(const std::vector<ReplayResult>& results, ReportRecord& report) {
  report.answers = compare_answers(results);
  const AnswerComparison& answers = report.answers;
  if (answers.compared == 0) return;
  report.notes.push_back(fmt::format(
      "{} of {} answers that all runs gave are identical, token for token{}{}", answers.identical,
      answers.compared, answers.first_difference.empty() ? "" : "; ", answers.first_difference));
}

void note_failures(const RunRecord& run, ReportRecord& report) {
  const TurnRecord* first = nullptr;
  int failed = 0;
  for (const TurnRecord& turn : run.turns) {
    if (turn.answered()) continue;
    ++failed;
    if (!first) first = &turn;
  }
  if (failed == 0) return;
  report.notes.push_back(
      fmt::format("{}: {} of {} turns failed, the first in session {}, turn {}: {}", run.policy,
                  failed, run.turns.size(), first->session + 1, first->turn + 1, first->error));
}

// The first sessions' first answers.
void add_samples(const ReplayResult& result, const Tokenizer& tokenizer, ReportRecord& report) {
  constexpr size_t kSamples = 3;
  for (size_t s = 0; s < std::min(kSamples, result.answers.size()); ++s) {
    const std::vector<TokenId>& answer = result.answers[s].front();
    if (answer.empty()) continue;
    const nlohmann::json text = tokenizer.decode(answer);
    report.notes.push_back(fmt::format("session {} was answered: {}", s + 1, text.dump()));
  }
}

// Before the first run, not after it.
void check_names(const char* flag, const std::vector<std::string>& names) {
  std::set<std::string> seen;
  for (const std::string& name : names) {
    if (!seen.insert(name).second)
      throw Error("{}: {} is named twice; name each {} once", flag, name, flag + 2);
  }
}

std::vector<RemoteServer> find_servers(const ReplaySetup& setup) {
  std::vector<RemoteServer> servers;
  for (const ServerUrl& url : setup.urls)
    servers.push_back(find_server(url, setup.served_model_name, setup.api_key, setup.silence));
  return servers;
}

// Text must be encoded; so are answers of servers that tell no ids.
std::optional<Tokenizer> load_tokenizer(const ReplaySetup& setup, const Trace& trace) {
  const std::string& folder = setup.machine.model;
  const bool may_serve = !setup.urls.empty() &&
                         std::filesystem::exists(std::filesystem::path(folder) / "tokenizer.json");
  if (trace.block_tokens > 0 && !may_serve) return std::nullopt;
  return Tokenizer::load(folder);
}

}  // namespace

bool run_replay(const ReplaySetup& setup, std::ostream& out, std::ostream& err) {
  std::vector<std::string> names = setup.policies;
  if (setup.urls.empty()) {
    for (const std::string& policy : setup.policies) policy_traits(policy);
    check_names("--policy", names);
  } else {
    names.clear();
    for (const ServerUrl& url : setup.urls) names.push_back(url.name);
    check_names("--url", names);
  }
  AtomicFiles::check_folder(setup.output);
  const ModelConfig model = load_model_config(setup.machine.model);
  const auto markup = model_markup(setup.machine.model);
  const Trace trace = load_trace(
      setup, kv_bytes_per_token(model, setup.machine.tensor_parallel, model.dtype), markup);
  const std::optional<Tokenizer> tokenizer = load_tokenizer(setup, trace);
  PromptBuilder::Encode encode;
  if (tokenizer)
    encode = [&tokenizer](std::string_view text) { return tokenizer->encode(text, false); };
  PromptOptions prompt_options = setup.prompts;
  prompt_options.vocab_size = model.vocab_size;
  const PromptBuilder prompts(trace, prompt_options, encode);
  const std::vector<RemoteServer> servers = find_servers(setup);

  InterruptWatch interrupt;
  ReportRecord report = make_report(setup, trace);
  if (!markup->fallback().empty())
    report.notes.push_back("messages are marked up in ChatML: " + markup->fallback());
  const Workload work{setup, model, trace, prompts, encode, interrupt, err};
  std::vector<ReplayResult> results;
  try {
    for (size_t r = 0; r < names.size(); ++r) {
      results.push_back(servers.empty() ? run_policy(work, names[r])
                                        : run_server(work, servers[r], report));
      note_failures(results.back().record, report);
      report.runs.push_back(std::move(results.back().record));
      results.back().record.policy = names[r];
      if (results.back().interrupted) break;
    }
  } catch (const LoadingInterrupted&) {
    if (results.empty()) return false;
  }
  compare_runs(results, report);
  if (setup.show_answer && tokenizer) add_samples(results.back(), *tokenizer, report);
  const std::string page = write_report(setup.output, report);
  out << results_table(report) << "page: " << page << "\n";
  return results.size() == names.size() && !results.back().interrupted;
}

}  // namespace vamp
