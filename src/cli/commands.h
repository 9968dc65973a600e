// The subcommands. Each add_x_command() declares its options on a subcommand of `app` and a
// callback that runs it: the callback writes results to `context.out`, throws Error on the user's
// faults, and sets `context.exit_code` where another than 0 is meant.
#pragma once

#include <CLI/CLI.hpp>
#include <iosfwd>

namespace vamp {

// Outlives the parsing of the command line and the callback that it runs.
struct CommandContext {
  std::ostream& out;
  std::ostream& err;
  int exit_code = 0;
};

using AddCommand = void (*)(CLI::App& app, CommandContext& context);

void add_inspect_command(CLI::App& app, CommandContext& context);
void add_replay_command(CLI::App& app, CommandContext& context);
void add_serve_command(CLI::App& app, CommandContext& context);

}  // namespace vamp
