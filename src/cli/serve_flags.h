// The flags of `vamp serve`, in one place: the command line and docs/serving.md are made of them.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/engine_flags.h"
#include "server/server_options.h"

namespace vamp {

struct ServeFlags {
  EngineFlags engine;
  ServerOptions server;
  std::string policy = "priced";
  std::string chat_template;  // a file, or Jinja text
  std::string generation_config = "auto";
  std::string api_key_file, config, kv_events;
  std::vector<std::string> api_keys;
  std::string max_body, max_header, max_backlog, max_grammar, grammar_cache;
  double sim_step_ms = 0;
  bool enforce_eager = false;
};

void add_serve_flags(CLI::App& command, ServeFlags& flags);

// The server's options as the flags say. `environment_key` is VAMP_API_KEY's, or empty. Throws
// Error.
ServerOptions finish_server_flags(const ServeFlags& flags, const std::string& environment_key);

// A table in Markdown of every flag: name, default, what it does.
std::string serve_flags_table();

}  // namespace vamp
