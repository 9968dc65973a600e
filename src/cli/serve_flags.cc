#include "cli/serve_flags.h"

#include <cctype>
#include <filesystem>

#include "base/file.h"
#include "cli/commands.h"
#include "server/auth.h"
#include "text/chat_renderer.h"
#include "text/output_parser.h"

namespace vamp {
namespace {

constexpr double kLeastSeconds = 0.1;  // connections are looked at so often: 0 would refuse all

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

void add_api_flags(CLI::App& command, ServeFlags& flags) {
  ServerOptions& server = flags.server;
  command
      .add_option("--served-model-name", server.served_names,
                  "name of the model in requests; several may be given (default: as given)")
      ->expected(1, 64);
  command
      .add_option("--api-key", flags.api_keys,
                  "key that requests must bring; several may be given. Others see it in the "
                  "list of processes: better the environment's VAMP_API_KEY, or a file")
      ->expected(1, 64);
  command.add_option("--api-key-file", flags.api_key_file, "file of such keys, one a line");
  command.add_option("--chat-template", flags.chat_template,
                     "Jinja file, or its text, in place of the model's");
  command.add_option("--tool-call-parser", server.tool_call_parser,
                     "how the model writes tool calls: " + listed(tool_call_parser_names()));
  command.add_flag("--enable-auto-tool-choice", server.enable_auto_tool_choice,
                   "let the model call tools; needs --tool-call-parser");
  command.add_option("--reasoning-parser", server.reasoning_parser,
                     "how the model marks its reasoning: " + listed(reasoning_parser_names()));
  command.add_option("--generation-config", flags.generation_config,
                     "first values of sampling: auto (the model's generation_config.json), vllm "
                     "(none), or a folder (default auto)");
  command.add_option("--otlp-traces-endpoint", server.otlp_traces_endpoint,
                     "http://HOST:PORT of an OpenTelemetry collector that gets a span of every "
                     "request (default none)");
  command
      .add_option("--max-logprobs", server.max_logprobs,
                  "alternatives that a request may ask for (default 20)")
      ->check(count_from(0));
  command
      .add_option("--seed", server.seed, "accepted for vllm serve's sake; seeds are a request's")
      ->check(number_from(0, kMostSeed));
}

void add_http_flags(CLI::App& command, ServeFlags& flags) {
  ServerOptions& server = flags.server;
  HttpOptions& http = server.http;
  command.add_option("--host", http.host, "address to listen on (default 127.0.0.1)");
  command.add_option("--port", http.port, "port; 0 takes a free one (default 8000)")
      ->check(number_from(0, 65535));
  command.add_option("--ssl-certfile", http.tls_certificate, "TLS: certificate chain, PEM");
  command.add_option("--ssl-keyfile", http.tls_key, "TLS: its key, PEM");
  command.add_option("--api-server-threads", http.threads, "threads for connections (default 1)")
      ->check(number_from(1, 256));
  command
      .add_option("--text-threads", server.text_threads,
                  "threads that render templates, tokenize and compile grammars (default 2)")
      ->check(number_from(1, 256));
  command
      .add_option("--max-connections", http.max_connections,
                  "beyond, a connection is answered 503 (default 4096)")
      ->check(count_from(1));
  command
      .add_option("--max-waiting-requests", server.max_waiting_requests,
                  "beyond, a request is answered 503; 0: no limit (default 2048)")
      ->check(count_from(0));
  command.add_option("--max-body-bytes", flags.max_body, "of a request (default 64MiB)");
  command.add_option("--max-header-bytes", flags.max_header, "of a request (default 64KiB)");
  command.add_option("--max-stream-backlog-bytes", flags.max_backlog,
                     "of a stream, waiting for a client that reads too slowly; beyond, it is cut "
                     "off (default 4MiB)");
  command
      .add_option("--max-json-depth", server.max_json_depth,
                  "nesting of a request's JSON (default 128)")
      ->check(number_from(8, 1000));
  command
      .add_option("--max-choices", server.max_choices,
                  "prompts times n of one request (default 128)")
      ->check(count_from(1));
  const auto seconds = [&](const char* flag, double& value, double least, const char* what) {
    command.add_option(flag, value, what)->check(number_from(least, kLongestSeconds));
  };
  seconds("--header-timeout", http.header_seconds, kLeastSeconds,
          "seconds for a request's headers (default 10)");
  seconds("--body-timeout", http.body_seconds, kLeastSeconds, "seconds for its body (default 60)");
  seconds("--write-timeout", http.write_seconds, kLeastSeconds,
          "seconds that a client may take nothing of its answer (default 60)");
  seconds("--idle-timeout", http.idle_seconds, kLeastSeconds,
          "seconds between two requests of a connection (default 75)");
  seconds("--keep-alive-interval", http.keep_alive_seconds, kLeastSeconds,
          "seconds after which a silent stream gets a comment (default 15)");
  seconds("--drain-timeout", server.drain_seconds, 0,
          "seconds after SIGTERM for requests under way (default 30)");
  seconds("--engine-stall-timeout", server.stall_seconds, 0,
          "seconds without a finished step until requests fail; 0: never (default 300)");
}

void add_grammar_flags(CLI::App& command, ServeFlags& flags) {
  GrammarLimits& limits = flags.server.grammar;
  command.add_option("--max-grammar-bytes", flags.max_grammar,
                     "constrained output: of a request's schema, pattern or grammar (default "
                     "256KiB)");
  command
      .add_option("--max-grammar-repetition", limits.max_repetition,
                  "constrained output: bounds like maxLength, maxItems and {0,n} (default 10000)")
      ->check(number_from(1, 1000000));
  command
      .add_option("--max-schema-depth", limits.schema_depth,
                  "constrained output: nesting of a JSON schema (default 64)")
      ->check(number_from(1, 1000));
  command
      .add_option("--max-schema-values", limits.schema_nodes,
                  "constrained output: objects, lists and values of a JSON schema (default 10000)")
      ->check(count_from(1));
  command.add_option("--grammar-cache-bytes", flags.grammar_cache,
                     "compiled grammars kept for the next request (default 256MiB)");
}

void read_size(const char* flag, const std::string& text, size_t& bytes) {
  if (!text.empty()) bytes = memory_flag(flag, text);
}

// An unset variable in `--api-key "$KEY"` must not make a server that looks guarded and is not.
void check_key(const char* where, const std::string& key) {
  if (key.find_first_not_of(" \t\r\n") == std::string::npos)
    throw Error("{}: the key is empty; give one, or leave the flag out to serve everybody", where);
  if (std::isspace(static_cast<unsigned char>(key.front())) ||
      std::isspace(static_cast<unsigned char>(key.back())))
    throw Error("{}: the key begins or ends with a blank, which no request can bring", where);
}

void check_generation_config(const std::string& choice) {
  if (choice == "auto" || choice == "vllm") return;
  if (!std::filesystem::exists(std::filesystem::path(choice) / "generation_config.json"))
    throw Error(
        "--generation-config {}: holds no generation_config.json; use auto, vllm or a folder "
        "that has one",
        choice);
}

// The text of a file, or that given itself.
std::string read_chat_template(const std::string& given) {
  if (given.empty()) return {};
  std::error_code code;
  const bool file = std::filesystem::exists(given, code);
  const std::string text = file ? read_text_file(given) : given;
  const std::string name = file ? given : "(the text given)";
  if (text.find('{') == std::string::npos) {
    throw Error("--chat-template {}: {}", given,
                file ? "holds no Jinja text" : "no such file, and no Jinja text");
  }
  try {
    ChatRenderer().check(text);
  } catch (const Error& error) {
    throw Error("--chat-template {}: {}", name, error.what());
  }
  return text;
}

void check_parser(const char* flag, const std::string& name,
                  const std::vector<std::string>& known) {
  if (name.empty() || std::find(known.begin(), known.end(), name) != known.end()) return;
  throw Error("{} {}: use one of {}", flag, name, listed(known));
}

}  // namespace

void add_serve_flags(CLI::App& command, ServeFlags& flags) {
  command
      .add_option("model", flags.engine.machine.model,
                  "Hugging Face folder, or the id of a model in the local Hugging Face cache")
      ->required();
  add_api_flags(command, flags);
  add_http_flags(command, flags);
  add_grammar_flags(command, flags);
  // Read before all others: see config_file.h.
  command
      .add_option("--config", flags.config,
                  "YAML file of flags; those of the command line go before")
      ->expected(1);
  command.add_option(
      "--policy", flags.policy,
      "who decides what leaves memory: " + listed(policy_names()) + " (default priced)");
  add_engine_flags(command, flags.engine);
  command.add_option("--kv-events-config", flags.kv_events,
                     "JSON: publish what the prefix cache holds over ZMQ, as vLLM does");
  flags.engine.sim_only.push_back(
      command
          .add_option("--sim-step-ms", flags.sim_step_ms,
                      "sim: milliseconds of every step, instead of the latency model's")
          ->check(number_from(0, 1e6)));
  command.add_flag("--enforce-eager", flags.enforce_eager,
                   "accepted for vllm serve's sake; there is nothing to switch off");
}

ServerOptions finish_server_flags(const ServeFlags& flags, const std::string& environment_key) {
  ServerOptions out = flags.server;
  read_size("--max-body-bytes", flags.max_body, out.http.max_body_bytes);
  read_size("--max-header-bytes", flags.max_header, out.http.max_header_bytes);
  read_size("--max-stream-backlog-bytes", flags.max_backlog, out.max_stream_backlog_bytes);
  if (out.http.max_header_bytes < 1024 || out.http.max_header_bytes > 64 * kMiB)
    throw Error("--max-header-bytes {}: use 1KiB to 64MiB", flags.max_header);
  read_size("--max-grammar-bytes", flags.max_grammar, out.grammar.source_bytes);
  read_size("--grammar-cache-bytes", flags.grammar_cache, out.grammar.cache_bytes);
  if (out.served_names.empty()) out.served_names = {flags.engine.machine.model};
  out.api_keys = flags.api_keys;
  for (const std::string& key : flags.api_keys) check_key("--api-key", key);
  if (!environment_key.empty()) {
    check_key("VAMP_API_KEY", environment_key);
    out.api_keys.push_back(environment_key);
  }
  if (!flags.api_key_file.empty()) {
    const auto keys = read_key_file(flags.api_key_file);
    out.api_keys.insert(out.api_keys.end(), keys.begin(), keys.end());
  }
  check_generation_config(flags.generation_config);
  out.chat_template = read_chat_template(flags.chat_template);
  check_parser("--tool-call-parser", out.tool_call_parser, tool_call_parser_names());
  check_parser("--reasoning-parser", out.reasoning_parser, reasoning_parser_names());
  if (out.enable_auto_tool_choice && out.tool_call_parser.empty())
    throw Error("--enable-auto-tool-choice needs --tool-call-parser");
  return out;
}

std::string serve_flags_table() {
  CLI::App app;
  ServeFlags flags;
  add_serve_flags(app, flags);
  std::string text = "| flag | what |\n|---|---|\n";
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_name() == "--help") continue;
    text +=
        fmt::format("| `{}` | {} |\n", option->get_name(false, true), option->get_description());
  }
  return text;
}

}  // namespace vamp
