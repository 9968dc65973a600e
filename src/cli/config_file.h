// `--config FILE`: flags from a YAML file, as `vllm serve` takes them.
#pragma once

#include <string>
#include <vector>

namespace vamp {

// The arguments with those of the file that `--config` names put in, behind the subcommand; what
// the command line says itself goes before. Keys are flags without dashes, and `model`. Throws
// Error naming the file and the key.
std::vector<std::string> expand_config(std::vector<std::string> args);

}  // namespace vamp
