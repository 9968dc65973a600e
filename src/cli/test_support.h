// For tests: the command line, and what became of it.
#pragma once

#include <sstream>
#include <string>
#include <vector>

#include "cli/cli.h"

namespace vamp {

struct CommandResult {
  int code = 0;
  std::string out, err;
};

// `args` without the program's name.
inline CommandResult run_command(const std::vector<std::string>& args) {
  std::vector<const char*> argv = {"vamp"};
  for (const std::string& arg : args) argv.push_back(arg.c_str());
  std::ostringstream out, err;
  const int code = run_cli(static_cast<int>(argv.size()), argv.data(), out, err);
  return {code, out.str(), err.str()};
}

}  // namespace vamp
