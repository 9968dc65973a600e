// The `vamp` program. All of it is in cli.cc and one file for each subcommand.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <iostream>

#include "cli/cli.h"

int main(int argc, char** argv) {
  spdlog::set_default_logger(spdlog::stderr_color_mt("vamp"));  // results alone go to stdout
  return vamp::run_cli(argc, argv, std::cout, std::cerr);
}
