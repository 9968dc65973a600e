// `vamp replay MODEL --trace FILE --policy static,paper,priced`: a recorded workload, once under
// each policy; with --url once against each server.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <ostream>

#include "base/error.h"
#include "cli/commands.h"
#include "cli/engine_flags.h"
#include "cli/replay_runs.h"

namespace vamp {
namespace {

// Flags as text, where they are checked or converted later.
struct ReplayFlags {
  ReplaySetup setup;
  EngineFlags engine;
  std::string trace_format, max_trace, window = "all";
  double think_cap = 60, think_time = -1, stagger = 0, max_seconds = 0, request_timeout = 600;
  std::vector<std::string> urls;
  // Flags that say nothing with --url, or without it.
  std::vector<const CLI::Option*> in_process_only, url_only;
};

void check_target(const ReplayFlags& flags) {
  const bool url = !flags.urls.empty();
  for (const CLI::Option* option : url ? flags.in_process_only : flags.url_only) {
    if (option->count() == 0) continue;
    throw url ? Error("{} says nothing with --url: leave it out; the server has its own",
                      option->get_name())
              : Error("{} says nothing without --url: leave it out, or name a server",
                      option->get_name());
  }
}

void finish_url_flags(const ReplayFlags& flags, ReplaySetup& setup) {
  for (const std::string& url : flags.urls) setup.urls.push_back(parse_server_url(url));
  setup.silence = flags.request_timeout * kSecond;
  const char* key = std::getenv("VAMP_API_KEY");
  if (setup.urls.empty() || !key) return;
  setup.api_key = key;
  if (std::any_of(setup.api_key.begin(), setup.api_key.end(), [](char c) { return c < ' '; }))
    throw Error("VAMP_API_KEY: the key holds a character that no header can bring");
}

ReplaySetup finish(ReplayFlags flags) {
  check_target(flags);
  ReplaySetup& setup = flags.setup;
  finish_url_flags(flags, setup);
  if (!flags.trace_format.empty()) setup.trace_read.format = parse_trace_format(flags.trace_format);
  if (!flags.max_trace.empty())
    setup.trace_read.max_bytes = memory_flag("--max-trace-bytes", flags.max_trace);
  setup.replay.window = parse_window(flags.window);
  setup.replay.seed = setup.prompts.seed;
  setup.replay.think_cap = flags.think_cap * kSecond;
  setup.replay.think_time = flags.think_time < 0 ? -1 : flags.think_time * kSecond;
  setup.replay.stagger = flags.stagger * kSecond;
  if (flags.max_seconds > 0) setup.replay.max_duration = flags.max_seconds * kSecond;
  if (setup.trace.starts_with("sweep:")) setup.replay.count_first_turns = false;
  setup.machine = finish_engine_flags(std::move(flags.engine));
  return setup;
}

void add_workload_options(CLI::App& command, ReplayFlags& flags) {
  ReplaySetup& setup = flags.setup;
  ReplayOptions& replay = setup.replay;
  command
      .add_option("--trace", setup.trace,
                  "file, .gz, tar archive or folder: AIPerf mooncake_trace, Mooncake, WEKA, vLLM "
                  "multi-turn, LMCache; or "
                  "sweep:sessions=16,kv=0.85GiB[,turns=12,output=128,first=0.4]")
      ->required();
  command.add_option("--trace-format", flags.trace_format,
                     "mooncake, weka, vllm-multi-turn or lmcache (default: told from the content)");
  command
      .add_option("--trace-block-size", setup.trace_read.block_tokens,
                  "tokens a block id stands for (default: told from the lengths)")
      ->check(number_from(1, 1 << 16));
  command.add_option("--max-trace-bytes", flags.max_trace, "of its text, unpacked (default 1GiB)");
  command.add_flag("--chat", setup.trace_read.chat,
                   "LMCache: wrap each piece of text as a user's message, in the model's chat "
                   "template");
  command
      .add_option("--sessions", replay.sessions,
                  "sessions at once; a session that ends makes room for the next (default: all, "
                  "from their recorded start)")
      ->check(count_from(0));
  command
      .add_option("--stagger", flags.stagger, "seconds between the starts of the first sessions")
      ->check(number_from(0, kLongestSeconds));
  command.add_option("--max-sessions", setup.selection.max_sessions, "the trace's first so many")
      ->check(count_from(0));
  command.add_option("--max-turns", setup.selection.max_turns, "of each session")
      ->check(count_from(0));
  command
      .add_option("--drop-shortest", setup.selection.drop_shortest,
                  "leave out so many sessions with the fewest turns")
      ->check(count_from(0));
  command
      .add_option("--token-scale", setup.token_scale,
                  "scale prompt and output lengths of a trace of block ids")
      ->check(number_from(1e-4, 64));
  command.add_option("--think-scale", replay.think_scale, "scale recorded think times")
      ->check(number_from(0, kLongestSeconds));
  command
      .add_option("--think-cap", flags.think_cap,
                  "seconds that a think time lasts at most (default 60)")
      ->check(number_from(0, kLongestSeconds));
  command.add_option("--think-time", flags.think_time, "seconds, instead of the recorded ones")
      ->check(number_from(0, kLongestSeconds));
  command.add_option("--think-jitter", replay.think_jitter, "vary think times by this share")
      ->check(number_from(0, 1));
  command
      .add_option("--output-len", setup.prompts.output_tokens,
                  "tokens of every answer (default: as recorded)")
      ->check(number_from(1, kMostTokens));
  command
      .add_option("--max-output-len", setup.prompts.max_output_tokens,
                  "tokens of an answer at most")
      ->check(number_from(1, kMostTokens));
  command
      .add_option("--first-prompt-tokens", setup.prompts.first_prompt_tokens,
                  "text: cut a session's first prompt")
      ->check(number_from(1, kMostTokens));
  command
      .add_option("--turn-tokens", setup.prompts.turn_tokens, "text: cut what a later turn adds")
      ->check(number_from(1, kMostTokens));
  command.add_flag("--own-replies", setup.prompts.own_replies,
                   "text: the model's own answer enters the next prompt, not the recorded one");
  command.add_option("--window", flags.window,
                     "what is counted: all, paper, or seconds BEGIN:END (default all)");
  command.add_option("--max-seconds", flags.max_seconds, "cut a run after so long")
      ->check(number_from(0, kLongestSeconds));
  command.add_option("--seed", setup.prompts.seed, "of prompt tokens and think times (default 1)")
      ->check(number_from(0, kMostSeed));
}

void add_url_options(CLI::App& command, ReplayFlags& flags) {
  command
      .add_option(
          "--url", flags.urls,
          "[NAME=]http://HOST:PORT of an OpenAI-compatible server: one run each, instead of "
          "policies; the environment's VAMP_API_KEY is its key")
      ->delimiter(',');
  flags.url_only = {
      command.add_option("--served-model-name", flags.setup.served_model_name,
                         "url: the model that requests name (default: the server's first)"),
      command
          .add_option("--request-timeout", flags.request_timeout,
                      "url: a turn fails when the server has said nothing for so many seconds "
                      "(default 600)")
          ->check(number_from(1e-3, 1e6))};
}

// The engine's flags and --policy.
void add_in_process_options(CLI::App& command, ReplayFlags& flags) {
  const size_t before = command.get_options().size();
  command.add_option("--policy", flags.setup.policies, "static, paper, priced, ...: one run each")
      ->delimiter(',');
  add_engine_flags(command, flags.engine);
  const std::vector<CLI::Option*> all = command.get_options();
  flags.in_process_only.assign(all.begin() + static_cast<std::ptrdiff_t>(before), all.end());
}

}  // namespace

void add_replay_command(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<ReplayFlags>();
  ReplaySetup& setup = flags->setup;
  setup.policies = {"static", "paper", "priced"};
  CLI::App* command = app.add_subcommand("replay",
                                         "Replay a recorded workload under one policy after the "
                                         "other, or against servers, and report");
  command->add_option("model", flags->engine.machine.model, "Hugging Face folder")->required();
  add_workload_options(*command, *flags);
  add_url_options(*command, *flags);
  add_in_process_options(*command, *flags);
  command->add_option(
      "--output", setup.output,
      "folder for results.json, results.sqlite and report.html (default results/replay)");
  command->add_flag("--show-answer", setup.show_answer, "text: print a sample answer");
  command->callback([flags, &context] {
    if (!run_replay(finish(*flags), context.out, context.err))
      context.exit_code = 130;  // as a shell says of Ctrl-C
  });
}

}  // namespace vamp
