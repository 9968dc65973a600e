#include "cli/cli.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <new>
#include <ostream>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/units.h"
#include "cli/commands.h"
#include "cli/config_file.h"

namespace vamp {
namespace {

constexpr int kUserFault = 2;
constexpr int kOwnFault = 3;

constexpr AddCommand kCommands[] = {add_inspect_command, add_replay_command, add_serve_command};

// vLLM's short form `-tp 2`, which CLI11 would read as `-t p`. In reverse, as CLI11 wants them.
std::vector<std::string> arguments(int argc, const char* const* argv) {
  std::vector<std::string> args = expand_config({argv + std::min(argc, 1), argv + argc});
  for (std::string& arg : args) {
    if (arg == "-tp" || arg.starts_with("-tp=")) arg.replace(0, 3, "--tensor-parallel-size");
  }
  std::reverse(args.begin(), args.end());
  return args;
}

int report(std::ostream& err, const char* kind, std::string message, int code) {
  std::replace(message.begin(), message.end(), '\n', ' ');
  err << "vamp: " << kind << ": " << message << "\n";
  return code;
}

// CLI11 would only say that a subcommand is required.
void check_subcommand(const CLI::App& app, const std::vector<std::string>& reversed_args) {
  if (reversed_args.empty() || reversed_args.back().starts_with("-")) return;
  std::string known;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (command->get_name() == reversed_args.back()) return;
    known += (known.empty() ? "" : ", ") + command->get_name();
  }
  throw Error("unknown subcommand '{}': use one of {}", reversed_args.back(), known);
}

int parse_and_run(CLI::App& app, std::vector<std::string> args, CommandContext& context) {
  check_subcommand(app, args);
  try {
    app.parse(std::move(args));
    if (!context.out.flush()) throw Error("standard output cannot be written: is its disk full?");
    return context.exit_code;
  } catch (const CLI::Success& help) {  // --help, --version
    return app.exit(help, context.out, context.err);
  } catch (const CLI::ParseError& error) {
    return report(context.err, "error", error.what() + std::string("; see vamp --help"),
                  kUserFault);
  }
}

// For every value: neither "$UNSET" nor, behind an $UNSET, the next flag is taken for one.
std::string missing_value(const std::string& text) {
  if (text.empty()) return "the value is empty: give one, or leave the flag out";
  if (text.starts_with("--")) return fmt::format("'{}' is a flag where a value should stand", text);
  return {};
}

void add_commands(CLI::App& app, CommandContext& context) {
  for (const AddCommand add : kCommands) add(app, context);
  for (CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    for (CLI::Option* option : command->get_options()) {
      if (option->get_items_expected_max() > 0) option->check(missing_value);
    }
  }
}

// Decimal alone: CLI11 would read 010 as eight, and "inf" as a number.
bool decimal(const std::string& text) {
  const bool octal = text.size() > 1 && text[0] == '0' && text[1] >= '0' && text[1] <= '9';
  return !octal && text.find_first_not_of("0123456789.eE+-") == std::string::npos;
}

}  // namespace

CLI::Validator number_from(double low, double high) {
  return CLI::Validator(
      [low, high](std::string& text) -> std::string {
        double value = 0;
        if (decimal(text) && CLI::detail::lexical_cast(text, value) && value >= low &&
            value <= high)
          return {};
        return fmt::format("'{}' must be a number {}", text,
                           std::isinf(high) || high >= std::numeric_limits<int>::max()
                               ? fmt::format("of at least {:g}", low)
                               : fmt::format("from {:g} to {:g}", low, high));
      },
      "");
}

size_t memory_flag(const char* flag, const std::string& text) {
  size_t bytes = 0;
  try {
    bytes = parse_bytes(text);
  } catch (const Error& error) {
    throw Error("{}: {}", flag, error.what());
  }
  if (bytes == 0) throw Error("{} {}: expected more than nothing", flag, text);
  return bytes;
}

int run_cli(int argc, const char* const* argv, std::ostream& out, std::ostream& err) {
  CLI::App app(
      "VAMP: serves mixture-of-experts models, and moves the boundary between expert "
      "weights and KV cache while it serves.",
      "vamp");
  app.set_version_flag("--version", std::string("vamp ") + VAMP_VERSION);
  app.require_subcommand(1);
  CommandContext context{out, err};
  signal(SIGXFSZ, SIG_IGN);  // a file beyond the limit is a failed write with a message
  try {
    add_commands(app, context);
    return parse_and_run(app, arguments(argc, argv), context);
  } catch (const Error& error) {
    return report(err, "error", error.what(), kUserFault);
  } catch (const std::filesystem::filesystem_error& error) {
    return report(err, "error", error.what(), kUserFault);
  } catch (const std::bad_alloc&) {
    return report(err, "error", "out of memory", kUserFault);
  } catch (const std::exception& error) {
    return report(err, "internal error", error.what(), kOwnFault);
  }
}

}  // namespace vamp
