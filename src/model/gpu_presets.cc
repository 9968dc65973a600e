#include "model/gpu_presets.h"

#include "base/error.h"

namespace vamp {
namespace {

size_t gib(double value) {
  return static_cast<size_t>(value * static_cast<double>(kGiB));
}

constexpr double kPcie4 = 25, kPcie5 = 55;

std::vector<GpuPreset> make_presets() {
  std::vector<GpuPreset> presets;
  // The paper's two machines. Their reserves are chosen so that Qwen3-Next-80B leaves the KV pool
  // that the paper states, 8.02 GiB under TP2 and 86.92 GiB under TP4, at its utilization of 0.90.
  presets.push_back({"h100-pcie-94g", "H100 NVL 94 GB; GPUs talk over PCIe, across NUMA nodes",
                     gib(94), 3938, 835, kPcie5, kPcie5, 14, gib(2.33), 0.90});
  presets.push_back({"h200-nvl", "H200 NVL 141 GB, NVLink bridge", gib(140), 4800, 835, kPcie5,
                     kPcie5, 393, gib(1.89), 0.90});
  presets.push_back({"h200", "H200 SXM 141 GB", gib(139.8), 4800, 989, kPcie5, kPcie5, 393});
  presets.push_back({"h100", "H100 SXM 80 GB", gib(79.1), 3350, 989, kPcie5, kPcie5, 393});
  presets.push_back({"gh200-96g", "GH200 96 GB, host memory over NVLink-C2C", gib(94.5), 4000, 989,
                     400, 300, 393});
  presets.push_back({"b200", "B200 180 GB", gib(178), 8000, 2250, kPcie5, kPcie5, 786});
  presets.push_back({"a100-80g", "A100 SXM 80 GB", gib(79.1), 2039, 312, kPcie4, kPcie4, 262});
  presets.push_back({"l40s", "L40S 48 GB", gib(44.4), 864, 362, kPcie4, kPcie4, 20});
  presets.push_back(
      {"rtx5090", "GeForce RTX 5090 32 GB", gib(31.3), 1792, 209, kPcie5, kPcie5, 40});
  presets.push_back(
      {"rtx4090", "GeForce RTX 4090 24 GB", gib(23.5), 1008, 165, kPcie4, kPcie4, 20});
  return presets;
}

}  // namespace

const std::vector<GpuPreset>& gpu_presets() {
  static const std::vector<GpuPreset> presets = make_presets();
  return presets;
}

const GpuPreset& gpu_preset(std::string_view name) {
  std::string known;
  for (const GpuPreset& preset : gpu_presets()) {
    if (preset.name == name) return preset;
    known += (known.empty() ? "" : ", ") + preset.name;
  }
  throw Error("unknown GPU '{}': use one of {}", name, known);
}

}  // namespace vamp
