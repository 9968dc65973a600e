// Named GPUs: what their makers state, and how much of their memory an engine keeps for itself.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"

namespace vamp {

// Bandwidths in 1e9 bytes a second and one direction, for one GPU. Memory bandwidth and arithmetic
// are the data sheet's peaks; links are what copies reach (PCIe 5.0 x16: 55 of 63; NVLink: measured
// on the H200, else in proportion).
struct GpuPreset {
  std::string name;
  std::string description;
  size_t memory_bytes = 0;  // that a program can have
  double memory_gbps = 0;
  double bf16_tflops = 0;  // dense
  double host_to_device_gbps = 0;
  double device_to_host_gbps = 0;
  double gpu_to_gpu_gbps = 0;
  // Runtime memory that config.json cannot tell: CUDA context, activations of the largest step,
  // workspaces, communication buffers, captured graphs.
  size_t reserve_bytes = 2 * kGiB;
  double memory_utilization = 0.92;  // default share of memory_bytes for everything
};

const std::vector<GpuPreset>& gpu_presets();

// Throws Error with the list of names for one that is not known.
const GpuPreset& gpu_preset(std::string_view name);

}  // namespace vamp
