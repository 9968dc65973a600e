// The command line: one binary, one file for each subcommand.
//
// A new subcommand is a file x.cc with add_x_command(), declared in commands.h and listed in
// cli.cc.
#pragma once

#include <iosfwd>

namespace vamp {

// Runs the command line and returns the exit code: 0, what the subcommand says, 2 for a fault that
// the user can mend (one line on `err`: "vamp: error: ..."), or 3 for a fault of our own.
int run_cli(int argc, const char* const* argv, std::ostream& out, std::ostream& err);

}  // namespace vamp
