// `vamp replay` once its flags are read: a model, a trace, and policies or servers; one run after
// the other.
#pragma once

#include <iosfwd>
#include <string>
#include <vector>

#include "cli/machine.h"
#include "replay/prompt_builder.h"
#include "replay/replay_driver.h"
#include "replay/server_url.h"
#include "replay/trace.h"

namespace vamp {

struct ReplaySetup {
  MachineSetup machine;
  std::string trace;  // a path, or sweep:sessions=16,kv=0.85GiB,...
  TraceReadOptions trace_read;
  TraceSelection selection;
  double token_scale = 1;
  PromptOptions prompts;
  ReplayOptions replay;
  std::vector<std::string> policies;
  std::vector<ServerUrl> urls;     // instead of policies
  std::string served_model_name;   // empty: what the server names first
  std::string api_key;             // empty: none
  Micros silence = 600 * kSecond;  // of a server, within a turn
  std::string output = "results/replay";
  bool show_answer = false;
};

// Runs every policy, or against every server; prints one table to `out` and progress to `err`,
// writes the report's files. True when every planned turn of every run was answered or refused
// (nothing was interrupted). A Ctrl-C before the first run has begun ends it with nothing written.
// Throws Error.
bool run_replay(const ReplaySetup& setup, std::ostream& out, std::ostream& err);

}  // namespace vamp
