// The flags of the engine and its machine, which `vamp replay` and `vamp serve` share.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "cli/machine.h"

namespace vamp {

// Flags as text, where they are checked or converted later.
struct EngineFlags {
  MachineSetup machine;
  std::string admission = "whole-prompt", scheduling = "fcfs", staging = "auto", dtype = "auto",
              load_format = "auto";
  std::string device_memory, kv_cache_memory, kv_offloading;
  // Flags that one executor alone knows. The other would pass them over.
  std::vector<const CLI::Option*> sim_only, cpu_only;
};

void add_engine_flags(CLI::App& command, EngineFlags& flags);

// Throws Error naming the flag.
MachineSetup finish_engine_flags(EngineFlags flags);

// One of `choices`, or an Error that lists them.
template <typename Value>
Value choose_flag(const char* flag, const std::string& text,
                  std::initializer_list<std::pair<const char*, Value>> choices) {
  std::string names;
  for (const auto& [name, value] : choices) {
    if (text == name) return value;
    names += (names.empty() ? "" : ", ") + std::string(name);
  }
  throw Error("{} {}: use one of {}", flag, text, names);
}

}  // namespace vamp
