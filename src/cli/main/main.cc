// The `vamp` program. All of it is in cli.cc and one file for each subcommand.
#include <iostream>

#include "cli/cli.h"

int main(int argc, char** argv) {
  return vamp::run_cli(argc, argv, std::cout, std::cerr);
}
