// The subcommands. Each add_x_command() declares its options on a subcommand of `app` and a
// callback that runs it: the callback writes results to `context.out`, throws Error on the user's
// faults, and sets `context.exit_code` where another than 0 is meant.
#pragma once

#include <CLI/CLI.hpp>
#include <iosfwd>
#include <limits>
#include <string>

namespace vamp {

// Outlives the parsing of the command line and the callback that it runs.
struct CommandContext {
  std::ostream& out;
  std::ostream& err;
  int exit_code = 0;
};

inline constexpr double kMostTokens = 16 << 20;  // of one request: beyond any model
inline constexpr double kLongestSeconds = 1e8;   // three years
inline constexpr double kMostSeed = 1e15;        // doubles still count one by one

// Checks of numbers, with both limits in the message. NaN is outside of every range.
CLI::Validator number_from(double low, double high);
inline CLI::Validator count_from(int low) {
  return number_from(low, std::numeric_limits<int>::max());
}

// Of a flag that is a size of memory, like 2GiB. Throws Error with the flag's name where it is not
// a size, or nothing.
size_t memory_flag(const char* flag, const std::string& text);

using AddCommand = void (*)(CLI::App& app, CommandContext& context);

void add_inspect_command(CLI::App& app, CommandContext& context);
void add_replay_command(CLI::App& app, CommandContext& context);
void add_serve_command(CLI::App& app, CommandContext& context);

}  // namespace vamp
